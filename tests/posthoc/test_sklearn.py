"CalibratedModel inside scikit-learn: its own checks, pipelines, searches, files and the routing of parameters."
from unittest import SkipTest

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier, StackingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from calibnb.posthoc import CalibratedModel, Calibrator, Isotonic

X, IDS = make_classification(300, 6, n_informative=4, n_classes=3, random_state=0)
WORDS = np.array(["ant", "bee", "cat"])[IDS]


@pytest.mark.filterwarnings("ignore")  # the checks give tiny and degenerate data
def test_the_checks_of_scikit_learn_pass():
    "Of a model with scores; one with probabilities in `make slow`."
    check_as_estimator(CalibratedModel(LogisticRegression(), cv=3))


def check_as_estimator(model):
    n = 0
    for estimator, check in estimator_checks_generator(model):
        try:
            check(estimator)
        except SkipTest:  # of array libraries that are not installed
            continue
        n += 1
    assert n > 50


def test_a_search_in_a_pipeline_gives_a_model_that_joblib_keeps(tmp_path):
    frame, labels = pd.DataFrame(X, columns=[*"uvwxyz"]), pd.Series(WORDS)
    pipeline = make_pipeline(StandardScaler(), CalibratedModel(LogisticRegression(), cv=3))
    options = {"calibratedmodel__calibrator": ["temperature", "isotonic"], "calibratedmodel__estimator__C": [.01, 1.]}
    search = GridSearchCV(pipeline, options, scoring="neg_log_loss", cv=3, error_score="raise").fit(frame, labels)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert np.isfinite(cross_val_score(clone(search.best_estimator_), frame, labels, cv=3)).all()
    joblib.dump(search.best_estimator_, tmp_path/"model.joblib")
    again, probs = joblib.load(tmp_path/"model.joblib"), search.predict_proba(frame)
    assert np.array_equal(again.predict_proba(frame), probs)  # bits: saved and loaded
    assert list(again.classes_) == ["ant", "bee", "cat"]

    model = again["calibratedmodel"]  # the calibrator by itself, with the names of its columns
    model.calibrator_.save(tmp_path/"c.safetensors")
    calibrator = Calibrator.load(tmp_path/"c.safetensors")
    assert calibrator.class_names_ == ("ant", "bee", "cat") and calibrator.fitted_on_["samples"] == len(X)
    scores = model.estimator_.decision_function(again[:-1].transform(frame))
    assert np.array_equal(calibrator.transform(scores), probs)  # bits: saved and loaded


@pytest.mark.parametrize("estimator, calibrator", [
    (LogisticRegression(class_weight=dict(ant=1, bee=2, cat=5)), "temperature"),  # the folds see the words
    (StackingClassifier([("a", LogisticRegression())], cv=2), "vector"),          # has its methods only after a fit
    (RandomForestClassifier(20, random_state=0), Isotonic(smooth=False)),         # probabilities of exactly 0
], ids=["class weights", "stack", "forest"])
@pytest.mark.filterwarnings("ignore:.*have probability 0")
def test_predictions_fit_the_probabilities_for_estimators_of_every_kind(estimator, calibrator):
    model = CalibratedModel(estimator, calibrator, cv=3).fit(X, WORDS)
    z, probs = model.decision_function(X), model.predict_proba(X)
    assert np.isfinite(z).all() and np.allclose(np.exp(z), probs, rtol=1e-6, atol=1e-300)
    assert (model.predict(X) == model.classes_[probs.argmax(1)]).all()


def test_few_small_margins_are_not_taken_for_probabilities():
    "All samples of one class, with margins in [0, 1]."
    model = CalibratedModel(LogisticRegression(C=.01), cv=3).fit(X, IDS == 1)
    z = model.estimator_.decision_function(X)
    rows = X[(z > 0) & (z < 1)]
    assert len(rows) > 20 and (model.predict_proba(rows)[:, 1] > .5).all()


@pytest.mark.parametrize("wrap", [lambda e: e, lambda e: make_pipeline(e), lambda e: GridSearchCV(e, dict(C=[1]))])
def test_scores_of_pairs_of_classes_are_refused(wrap):
    with pytest.raises(ValueError, match="^estimator: SVC.decision_function_shape='ovo'. gives a score for each pair"):
        CalibratedModel(wrap(SVC(decision_function_shape="ovo")), cv=3).fit(X, WORDS)


def test_weights_and_groups_go_where_they_are_asked_for():
    weight = np.random.default_rng(0).integers(0, 3, len(X))
    twice = np.repeat(np.arange(len(X)), weight)
    fitted = LogisticRegression().fit(X, IDS)
    weighted = CalibratedModel(fitted, cv="prefit").fit(X, IDS, weight)
    repeated = CalibratedModel(fitted, cv="prefit").fit(X[twice], IDS[twice])
    assert weighted.calibrator_.temperature_ == pytest.approx(repeated.calibrator_.temperature_, rel=1e-6)
    with sklearn.config_context(enable_metadata_routing=True):
        asked = CalibratedModel(LogisticRegression().set_fit_request(sample_weight=True), cv=GroupKFold(3))
        asked.set_fit_request(sample_weight=True).fit(X, IDS, sample_weight=weight, groups=np.arange(len(X)) % 5)
    assert asked.calibrator_.fitted_on_["samples"] == (weight > 0).sum()
    with pytest.warns(UserWarning, match="Pipeline takes none, so only the calibrator") as caught:
        CalibratedModel(make_pipeline(LogisticRegression()), cv=3).fit(X, IDS, weight + 1)
    assert __file__ in [w.filename for w in caught]

"""Is the audit's advice right? Eight scikit-learn models with 2 to 20 classes, judged on samples that no audit saw.

    python benchmarks/advice.py            # three audit sets a model, some 90 seconds on two cores
    python benchmarks/advice.py --draws 1  # one audit set a model
    python benchmarks/advice.py --problems 300  # four other problems of the same kind

Each audit sees 4,000 samples; the 16,000 others tell which row of its table is best. On those, advice is right if its
NLL is within .01 nats of the best row's and its ECE is below the 95 % point of the noise floor that the audit stated.
"""
import argparse
import os
import warnings
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from sklearn.datasets import make_classification
from sklearn.ensemble import ExtraTreesClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from calibnb.core import Predictions
from calibnb.evaluate import Scored, evaluate

N_TRAIN, N_AUDIT, N_TEST = 2_000, 4_000, 16_000
CLASSES = 2, 3, 7, 20
NLL_MARGIN = .01  # nats
MODELS = {
    "forest": lambda: RandomForestClassifier(100, random_state=0),
    "extra trees": lambda: ExtraTreesClassifier(100, random_state=0),
    "boosting": lambda: HistGradientBoostingClassifier(max_iter=60, random_state=0),
    "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
    "naive Bayes": GaussianNB,
    "neighbours": lambda: KNeighborsClassifier(15),
    "tree": lambda: DecisionTreeClassifier(min_samples_leaf=5, random_state=0),
    "mlp": lambda: make_pipeline(StandardScaler(), MLPClassifier((64,), max_iter=150, random_state=0)),
}


def samples(num_classes, seed):
    "Features and labels of all sets, from one mixture of Gaussians with 4 % of labels drawn anew."
    return make_classification(
        N_TRAIN + N_AUDIT + N_TEST,
        n_features=20,
        n_informative=12,
        n_redundant=4,
        n_classes=num_classes,
        flip_y=.04,
        class_sep=1.2 if num_classes < 10 else 1.6,
        random_state=num_classes + seed)


def audits(name, num_classes, draws, seed):
    "A line for each audit set drawn: was the advice right?"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    features, target = samples(num_classes, seed)
    probs = MODELS[name]().fit(features[:N_TRAIN], target[:N_TRAIN]).predict_proba(features[N_TRAIN:])
    target = target[N_TRAIN:]
    orders = [np.arange(len(target)), *(np.random.default_rng(i).permutation(len(target)) for i in range(1, draws))]
    return [judged(name, num_classes, probs, target, order[:N_AUDIT], order[N_AUDIT:]) for order in orders]


def judged(name, num_classes, probs, target, audit, test):
    "One audit, and what its advice is worth on the other samples."
    seen = Predictions.from_probs(probs[audit], target[audit])
    unseen = Predictions.from_probs(probs[test], target[test], eps=seen.eps)
    found = evaluate(seen)
    scored = {row: Scored.of(unseen, found.fitted.get(row)) for row in found.rows}
    nll = {row: s.nll.mean().item() for row, s in scored.items()}
    advice, best = found.recommended, min(nll, key=nll.get)
    ece, limit = scored[advice].ece(), found.rows[advice]["ece"].floor_high
    right = nll[advice] <= nll[best] + NLL_MARGIN, ece <= limit
    numbers = f"NLL {nll[advice]:.4f}, best {nll[best]:.4f} ({best}); ECE {100*ece:.2f} %, limit {100*limit:.2f} %"
    failed = [measure for measure, is_right in zip(("NLL", "ECE"), right) if not is_right]
    mark = f"  <- {failed[0]}" if failed else ""
    return right, f"{name:12} {num_classes:2} classes: {advice:20} {numbers}{mark}"


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--draws", type=int, default=3, help="audit sets a model; the first is the samples as they come")
    args.add_argument("--problems", type=int, default=100, help="seed of the four problems")
    options = args.parse_args()
    jobs = [(name, K) for K in CLASSES for name in MODELS]
    right = []
    n_processors = os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()
    with ProcessPoolExecutor(n_processors) as pool:
        for found in pool.map(audits, *zip(*jobs), [options.draws]*len(jobs), [options.problems]*len(jobs)):
            print(*(line for _, line in found), sep="\n", flush=True)
            right.append([is_right for is_right, _ in found])
    for draw, of_draw in enumerate(zip(*right)):
        both = sum(map(all, of_draw))
        nll, ece = (sum(column) for column in zip(*of_draw))
        print(f"draw {draw}: {both} of {len(of_draw)} right; NLL {nll}, ECE {ece}")


if __name__ == "__main__":
    main()

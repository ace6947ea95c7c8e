"The geometry of the losses: all findings are algebra, and one argument of a paper is contradicted by it."
import numpy as np
import pytest
from conftest import assert_complete, claim, run_forked
from reading import broken_copy, kinds, table

from calibnb.notebooks import CONTRADICTED, HOLDS

FEW = dict(points=1000)
UP_TO, BELOW = "L_f ≥ CE − γ H for γ ≥ 1", "the same for γ between 0 and 1"


@pytest.fixture(scope="module")
def geometry(root):
    return run_forked("loss_geometry", FEW, root=root)


def test_it_is_complete_and_all_of_it_identities(geometry):
    assert_complete(geometry, figures=5, tables=1)
    assert kinds(geometry) == {"identity"} and len(geometry.result.findings) == 17


def test_one_argument_of_a_paper_does_not_stand(geometry):
    wrong = {f.claim: f.verdict for f in geometry.result.findings if f.verdict != HOLDS}
    assert wrong == {"BSCE-GRA is least at the true probability": CONTRADICTED}


def test_peaks_of_the_gradient_factor(geometry):
    peaks = np.array([[float(v) for v in row] for row in table(geometry, "peaks")[1:]])
    want = [[.5, .1613, 1.076], [1, .1353, 1.135], [2, .1041, 1.225], [3, .0855, 1.292], [5, .0639, 1.394]]
    assert np.allclose(peaks[:, :3], want, atol=6e-4)


@pytest.fixture(scope="module")
def broken(root, tmp_path_factory):
    "Another weight, and half the entropy in the bounds; what stands beside them is as it was."
    wrong = {"'focal': focal_weight(seen, 1.)": "'focal': bsce_weight(seen, 2., 2.)",
             "gamma*negative_entropy": ".5*gamma*negative_entropy"}
    return run_forked(broken_copy("loss_geometry", tmp_path_factory.mktemp("broken"), wrong), FEW, root=root)


def test_another_weight_turns_the_findings(broken):
    assert claim(broken, "focal weight sees the label alone") == CONTRADICTED
    assert claim(broken, "focal weight is half the L1 distance") == CONTRADICTED
    assert claim(broken, "dual focal weight changes") == HOLDS


def test_the_bound_is_no_longer_true_with_half_the_entropy(broken):
    "For any exponent: one wrong sample whose label has a small probability is enough."
    assert claim(broken, UP_TO) == CONTRADICTED and claim(broken, BELOW) == CONTRADICTED
    assert claim(broken, "a lower temperature") == HOLDS

"The geometry of the losses: all findings are algebra, and one argument of a paper is contradicted by it."
import numpy as np
import pytest
from conftest import assert_complete, claim, run_forked
from reading import kinds, table, with_cell

from calibnb.notebooks import CONTRADICTED, HOLDS

FEW = dict(points=1000)


@pytest.fixture(scope="module")
def geometry(root):
    return run_forked("loss_geometry", FEW, root=root)


def test_it_is_complete_and_all_of_it_identities(geometry):
    assert_complete(geometry)
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
    wrong = "def focal_weight(lp, gamma): return bsce_weight(lp, 2., 2.)"
    return run_forked(with_cell("loss_geometry", tmp_path_factory.mktemp("broken"), wrong), FEW, root=root)


def test_another_weight_turns_the_findings(broken):
    assert claim(broken, "focal weight sees the label alone") == CONTRADICTED
    assert claim(broken, "focal weight is half the L1 distance") == CONTRADICTED
    assert claim(broken, "dual focal weight changes") == HOLDS

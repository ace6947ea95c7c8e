"The geometry of the losses: all findings are algebra, and some statements of the papers are wrong as printed."
import numpy as np
import pytest
from conftest import assert_complete
from reading import plan, run_here, table

from calibnb.studies import CONTRADICTED, HOLDS, WRONG, decide, paper_claims

STUDY, SETTINGS = "loss_geometry", dict(smoke=True, points=1000)


def test_it_is_complete_and_all_of_it_identities(study):
    "Some statements of the papers do not stand as they are put."
    assert_complete(study)
    assert {f.kind for f in study.result.findings} == {"identity"} and len(study.result.findings) == 39
    failed = [f for f in study.result.findings if f.verdict != HOLDS]
    wrong = {f.id for f in failed}
    assert wrong == {"lin-41", "mukhoti-12", "lin-39", "wang-49", "metareg-34"}
    assert {f.verdict for f in failed} == {WRONG}
    assert all(f.ours.startswith(("Section", "Appendix")) for f in failed), "which formula is wrong"
    assert {row["id"] for row in paper_claims() if row["kind"] == "identity" and row["supported"] == "no"} > wrong


def test_peaks_of_the_gradient_factor(study):
    peaks = np.array([[float(v) for v in row] for row in table(study, "peaks")[1:]])
    want = [[.5, .1613, 1.076], [1, .1353, 1.135], [2, .1041, 1.225], [3, .0855, 1.292], [5, .0639, 1.394]]
    assert np.allclose(peaks[:, :3], want, atol=6e-4)


def verdicts(source, root):
    "Return claim -> verdict of the first section, with a cell after the imports."
    seen = run_here(STUDY, source, SETTINGS, root, until="seen", figures=False)["seen"]
    return {finding.claim: finding.verdict for finding in decide(seen)}


HALF_L1, POWER = "focal weight is half the L1 distance", "focal weight is a power of |p_y − 1|, dual focal weight of"


def verdict(found, start):
    one, = [verdict for claim, verdict in found.items() if claim.startswith(start)]
    return one


def test_another_weight_turns_the_findings(tmp_path):
    broken = verdicts("def focal_weight(lp, gamma): return bsce_weight(lp, 2., 2.)", tmp_path)
    assert verdict(broken, "focal weight depends on the probability of the label alone") == WRONG
    assert verdict(broken, HALF_L1) == CONTRADICTED
    assert verdict(broken, POWER) == WRONG
    assert verdict(broken, "dual focal weight changes") == HOLDS


def test_another_dual_weight_turns_its_norm(tmp_path):
    "The claim holds of the most likely class but the label, not of the most likely one below it."
    broken = verdicts("from calibnb.losses.weights import dual_focal_weight as whole\n"
                      "def dual_focal_weight(lp, gamma, second='below'): return whole(lp, gamma)", tmp_path)
    assert verdict(broken, POWER) == WRONG
    assert verdict(broken, HALF_L1) == HOLDS


def test_the_full_setting_is_not_for_tests():
    with pytest.raises(ValueError, match="smoke: True belongs to the quick setting"):
        plan(STUDY, smoke=True)

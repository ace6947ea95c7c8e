"Plans: the trainings that notebooks and sweeps would make, and the operations of the papers' networks."
import sys

from conftest import ROOT, on_processes

sys.path.insert(0, str(ROOT/"docs"))
import plans  # noqa: E402


def test_plans_are_those_of_the_commands(tmp_path):
    "The trainings that notebooks and sweeps would make now, and their hours; in a process, since notebooks set styles."
    on_processes(1, plans.main, tmp_path/"plans.csv")
    assert (tmp_path/"plans.csv").read_text() == (ROOT/"nbs"/"plans.csv").read_text(), "run `make plans`"

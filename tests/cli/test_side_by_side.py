"Two commands that write to one place at once, and folders that cannot take their place."
import errno

import pytest
from pairs import KINDS, Place, pairs

from calibnb.core import atomic

OF_NOTEBOOKS = "two audits of one file into two folders"  # share the run of the notebook: tests/slow/test_grids.py


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("here"), notebooks=False)


@pytest.mark.parametrize("kind, first, second", [pair for pair in pairs(len(KINDS)) if pair[0] != OF_NOTEBOOKS])
def test_of_two_commands_one_stands(place, tmp_path, kind, first, second):
    place.check(kind, first, second, tmp_path)


def broken(*args):
    raise OSError(errno.EIO, "no luck")


STEPS = {  # what fails -> which functions of `atomic` are replaced
    "the disk is full": dict(_flush=broken),
    "the second of two renamings": dict(_rename=broken),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_folder_that_cannot_take_its_place_leaves_the_old_one(tmp_path, monkeypatch, step):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "old").write_text("old")
    renamed = atomic._rename
    for name, function in STEPS[step].items():
        monkeypatch.setattr(atomic, name, function)
    calls = iter([renamed])  # the first renaming finds the folder occupied
    if "_rename" in STEPS[step]:
        monkeypatch.setattr(atomic, "_rename", lambda *args: next(calls, broken)(*args))
    with pytest.raises(OSError), atomic.atomic_folder(tmp_path / "made") as new:
        (new / "new").write_text("new")
    assert {p.name: [q.name for q in p.iterdir()] for p in tmp_path.iterdir()} == {"made": ["old"]}

"""Stubs of the doors: `python docs/doors.py` writes calibnb/**/__init__.pyi, from which editors and type checkers know
what a door hands out and from where."""
import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]


def attached(door):
    "Return the submodules and {room: names} that a door attaches lazily."
    calls = [node for node in ast.walk(ast.parse(door.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    given = {k.arg: ast.literal_eval(k.value) for call in calls for k in call.keywords if k.arg}
    return given.get("submodules", []), given.get("submod_attrs", {})


def stub(door):
    "Return the stub's text: each name, imported from its room."
    submodules, rooms = attached(door)
    lines = [f"from . import {name} as {name}" for name in submodules]
    lines += [f"from .{room} import {name} as {name}" for room, names in rooms.items() for name in names]
    return "\n".join(["# Made by docs/doors.py (make sync) from the door beside it; do not edit.", *lines, ""])


def write_stubs(root=ROOT):
    for door in sorted((root/"calibnb").rglob("__init__.py")):
        if any(attached(door)):
            text = stub(door) + "\n__version__: str\n"*(door.parent.name == "calibnb")
            door.with_suffix(".pyi").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_stubs()

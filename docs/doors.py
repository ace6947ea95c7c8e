"""Write the stubs of the doors: `python docs/doors.py` writes calibnb/**/__init__.pyi, which list the public names of
each door and their modules for editors and type checkers."""
import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def attached(door):
    "Return the submodules and {room: names} that a door attaches lazily."
    calls = [node for node in ast.walk(ast.parse(door.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    given = {k.arg: ast.literal_eval(k.value) for call in calls for k in call.keywords if k.arg}
    return given.get("submodules", []), given.get("submod_attrs", {})


def metric_heads(wing):
    """Return {name: signature for users} of each function with the decorator `sample_metric`.

    The signature has probabilities and labels instead of samples, and the options of `over_samples`."""
    samples, found = wing/"samples.py", {}
    if not samples.exists():
        return found
    listed = re.findall(r"^    ((\w+)\b.*)$", samples.read_text(encoding="utf-8"), re.M)
    written_as = {name: line for line, name in listed}  # the last place, which has the comments
    for room in sorted(wing.glob("*.py")):
        lines = room.read_text(encoding="utf-8").splitlines()
        for node in ast.parse("\n".join(lines)).body:
            decorators = [d for d in getattr(node, "decorator_list", []) if ast.unparse(d).startswith("sample_metric(")]
            if decorators:
                names = [arg.value for arg in decorators[0].args] + ["ignore_index", "validate"]
                found[node.name] = metric_head(lines[node.lineno - 1:node.body[0].lineno - 1], names, written_as)
    return found


def metric_head(written, names, written_as):
    "Return the head of a metric with the options of these names, each as written in metrics/samples."
    if len(written) == 1:
        written = written[0].replace("(samples)", "(\n    samples,\n)").split("\n")
    first, _, *own, result = written
    options = [f"    {written_as[name]}" for name in names]
    if not own or not any(line.startswith("    *,") for line in own):
        options[0] = f"    *, {options[0].lstrip()}"
    return "\n".join([first, f"    {written_as['probs']}", *own, *options, result])


def stub(door):
    "Return the stub's text: each name, imported from its room; a metric with the signature that users call."
    submodules, rooms = attached(door)
    heads = metric_heads(door.parent)
    lines = [f"from . import {name} as {name}" for name in submodules]
    for room, names in rooms.items():
        lines += [f"{heads[name]}\n    ..." if name in heads else f"from .{room} import {name} as {name}"
                  for name in names]
    if heads:
        lines.insert(0, "from torch import Tensor")
    return "\n".join(["# Made by docs/doors.py (make sync) from the door beside it; do not edit.", *lines, ""])


def write_stubs(root=ROOT):
    for door in sorted((root/"calibnb").rglob("__init__.py")):
        if any(attached(door)):
            text = stub(door) + "\n__version__: str\n"*(door.parent.name == "calibnb")
            door.with_suffix(".pyi").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_stubs()

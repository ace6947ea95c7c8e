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


# decorator -> the room and the function that have its arguments as written, those before and those after the options
DECORATORS = {
    "sample_metric": ("samples", "over_samples", ["probs"], ["ignore_index", "validate"]),
    "sample_loss": ("weights", "check_batch", ["logits", "target"], ["weight", "ignore_index", "reduction"]),
}


def decorated_heads(wing):
    """Return {name: signature for users} of each function with the decorator `sample_metric` or `sample_loss`.

    The signature has the data instead of samples or a batch, and the options that the decorator adds."""
    found = {}
    for room in sorted(wing.glob("*.py")):
        lines = room.read_text(encoding="utf-8").splitlines()
        for node in ast.parse("\n".join(lines)).body:
            for decorator in getattr(node, "decorator_list", []):
                if (name := re.match(r"\w*", ast.unparse(decorator))[0]) in DECORATORS:
                    own = [arg.value for arg in getattr(decorator, "args", [])]
                    found[node.name] = decorated_head(head_of(node, lines), name, own, wing)
    return found


def head_of(node, lines):
    "Return the lines of a function up to its docstring."
    return lines[node.lineno - 1:node.body[0].lineno - 1]


def decorated_head(written, decorator, own_names, wing):
    "Return the head of a metric or loss with the data and options of its decorator, each as written in its room."
    room, function, data, after = DECORATORS[decorator]
    lines = (wing/f"{room}.py").read_text(encoding="utf-8").splitlines()
    node = next(n for n in ast.parse("\n".join(lines)).body if getattr(n, "name", "") == function)
    written_as = {re.match(r"\W*(\w+)", line)[1]: line for line in head_of(node, lines)[1:-1]}
    if len(written) == 1:
        written = written[0].replace("(samples)", "(\n    samples,\n)").split("\n")
    first, _, *own, result = written
    options = [written_as[name] for name in own_names + after]
    if not any(line.startswith("    *,") for line in own):
        options[0] = f"    *, {options[0].lstrip()}"
    return "\n".join([first, *[written_as[name] for name in data], *own, *options, result])


def stub(door):
    "Return the stub's text: each name, imported from its room; a metric or loss with the signature that users call."
    submodules, rooms = attached(door)
    heads = decorated_heads(door.parent)
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

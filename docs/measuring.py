"""How a study measures: its calibrators and numbers of bins, read from the calls in its notebook.

A notebook measures after its trainings, so that its calls are not made here. Of a call that makes a calibrator or takes
a number of bins, the arguments are evaluated with the notebook's variables after its plan (`plans.gone_through`).
"""
import ast
import inspect
import json

from calibnb.evaluate import Resamples, Scored
from calibnb.posthoc import HistogramBinning, TemperatureScaling
from calibnb.train import make_recorder

CALIBRATORS = {kind.__name__: kind for kind in (TemperatureScaling, HistogramBinning)}
METHODS = {"ece": Scored.ece, "ada_ece": Scored.ada_ece, "bins": Scored.bins, "diagram": Scored.diagram}


def tree_of(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ast.parse("\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"))


def value(node, names):
    return eval(compile(ast.Expression(node), "<argument>", "eval"), dict(names))


def with_constants(tree, names):
    "Return the variables, with those that later cells set to a literal."
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                pass
    return found | names


def loops(tree, names):
    "Return the values that the variables of loops run through: name -> set."
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.target, ast.Name):
            try:
                found.setdefault(node.target.id, set()).update(value(node.iter, names))
            except (NameError, TypeError, KeyError, AttributeError):  # runs through what a training has made
                pass
    return found


def calls(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def calibrators(path, names):
    "Return the calibrators that a notebook makes, unfitted."
    def maker(node):
        owner = node.value if isinstance(node, ast.Attribute) else node
        return isinstance(owner, ast.Name) and owner.id in CALIBRATORS
    found = []
    for node in calls(tree_of(path)):
        if maker(node.func):
            made = value(node, names)
            found += [made] if isinstance(made, tuple(CALIBRATORS.values())) else []
        elif getattr(node.func, "id", "") == "partial" and maker(node.args[0]):
            found.append(value(node, names)())
    return found


def signature_of(function):
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # no function, or one without a signature
        return inspect.Signature()


def argument(node, function, name):
    "Return the node of an argument of a call, or its default; None if the function does not take these arguments."
    given = [arg for arg in node.args if not isinstance(arg, ast.Starred)]
    try:
        bound = signature_of(function).bind_partial(*given, **{k.arg: k.value for k in node.keywords if k.arg})
    except TypeError:
        return None
    bound.apply_defaults()
    return bound.arguments.get(name)


def takes_bins(node, names):
    "Return the argument for the number of bins of a call; None if it takes none."
    called, function = node.func, None
    if isinstance(called, ast.Name) and called.id != "resampled_truth_error":  # no paper measures against the truth
        function = names.get(called.id)
    elif isinstance(called, ast.Attribute) and getattr(called.value, "id", "") == "Scored":
        function = getattr(Scored, called.attr, None)
    elif isinstance(called, ast.Attribute) and called.attr in METHODS:
        of_resamples = called.attr == "ece" and len(node.args) > 1  # confidences and hits
        function = (Resamples.ece if of_resamples else METHODS[called.attr]).__get__(object())
    return argument(node, function, "n_bins")


def numbers_of_bins(path, names):
    "Return the numbers of bins of all measures in a notebook, those of its trainings' own measures among them."
    tree = tree_of(path)
    names = with_constants(tree, names)
    of_loops = loops(tree, names)
    found = {inspect.signature(Scored.of).parameters["n_bins"].default}
    for node in calls(tree):
        if (given := takes_bins(node, names)) is None:
            continue
        if not isinstance(given, ast.AST):
            found.add(given)
        elif isinstance(given, ast.Name) and given.id not in names:
            found |= of_loops[given.id]  # KeyError: it cannot be read
        else:
            found.add(value(given, names))
    return found


def recorders(configs):
    "Return the recorders of trainings: name -> recorder with its options."
    return {name: make_recorder(name) for name in dict.fromkeys(name for c in configs for name in c.recorders)}

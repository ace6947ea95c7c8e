"""Find equality of computed floats, which holds on one processor and not on the next.

`equalities(text)` yields each `==`, `torch.equal`, `Tensor.equal`, `np.array_equal` and `test_eq` that compares a float
known to be rounded with another value. `close` and `test_close` compare such numbers. Where equal bits are promised
(saved and loaded, resumed, repeated: the same operations on one machine), a comment in the statement says why:
`# bits: saved and loaded`.
"""
import ast
import re

from calibnb import losses, metrics

# functions and methods that give rounded floats; of tensors, of NumPy arrays, of calibrators, our metrics and losses
ROUNDED = set("""mean std var sum prod norm cumsum logsumexp softmax log_softmax sigmoid logsigmoid tanh exp exp2 expm1
log log2 log1p sqrt rsqrt pow square dot matmul mm einsum trapezoid quantile median average cross_entropy softplus erf
lerp grad nll ece log_loss transform transform_probs transform_logits predict_proba weighted_cross_entropy""".split())
ROUNDED |= {name for name in metrics.__all__ if name.islower() and name not in ("metrics", "list_metrics")}
ROUNDED |= {name for name in losses.__all__ if name.endswith("_loss") and name not in ("make_loss", "register_loss")}
SUMS = {"sum", "prod", "cumsum"}  # rounded, but of whole numbers
# functions and methods that pass on a number as it is
UNCHANGED = set("""item tolist numpy detach cpu double float clone reshape view squeeze unsqueeze flatten ravel flip
permute transpose contiguous to copy astype as_tensor tensor array asarray abs max min amax amin list tuple sorted
from_numpy dict zip values items stack cat concatenate unique""".split())
# functions, methods and names of whole numbers, truth values and text
WHOLE = set("""argmax argmin argsort long int round bool any all sign floor ceil len count_nonzero shape size dtype
device isnan isfinite type predict numel count hit hits right wrong note pred target index n""".split())
EQUALS = "equal", "array_equal", "test_eq"
MARK = re.compile(r"# bits: \w")


def called(node):
    "Return the name of the function or method that a call calls."
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def taken(node):
    "Return what a call computes from: the value before the dot, or the first argument of a function."
    before = getattr(node.func, "value", None)
    return node.args[:1] if before is None or getattr(before, "id", "") in ("torch", "np", "F", "math") else [before]


def computes(function):
    "Return True if what is called is a metric or a loss taken by name, or a loss that was made."
    if not isinstance(function, ast.Call):
        return False
    name = called(function)
    by_name = name == "getattr" and getattr(function.args[0], "id", "") in ("metrics", "losses")
    return by_name or name == "make_loss" or name.endswith("Loss")


def whole(node):
    "Return True if an expression is known to hold whole numbers or truth values: a sum of them is exact."
    if isinstance(node, ast.Name):
        return node.id in WHOLE
    if isinstance(node, ast.Attribute):
        return node.attr in WHOLE
    if isinstance(node, ast.Subscript):
        return whole(node.value) or getattr(node.slice, "value", None) in WHOLE
    if isinstance(node, ast.UnaryOp):
        return whole(node.operand)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.BitAnd, ast.BitOr)) or whole(node.left) and whole(node.right)
    if isinstance(node, ast.Call):
        return called(node) in WHOLE
    return isinstance(node, (ast.Compare, ast.BoolOp))


def exact(node):
    "Return True for what arithmetic hits without an error (halves, quarters, infinity) and for pytest.approx."
    if isinstance(node, ast.Constant):
        return not isinstance(node.value, float) or (node.value*1024).is_integer()
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return all(exact(v) for v in node.elts)
    if isinstance(node, ast.UnaryOp):
        return exact(node.operand)
    if isinstance(node, ast.Attribute):
        return node.attr == "inf"
    if isinstance(node, ast.BinOp):
        of_two = not isinstance(node.op, ast.Div) or getattr(node.right, "value", 0) in (1, 2, 4, 8, 16)
        return of_two and exact(node.left) and exact(node.right)
    if isinstance(node, ast.Call):
        values = taken(node)
        of_numbers = called(node) in ("tensor", "array", "float", "double") and values and exact(values[0])
        return of_numbers or called(node) in ("approx", "len")
    return False


class Names(dict):
    "Names of a module or a function: name -> whether it holds a rounded float, or (with brackets) computes one."

    def rounded(self, node):
        "Return True if an expression is known to hold a rounded float."
        if isinstance(node, ast.Call):
            return self.called(node)
        if isinstance(node, ast.Name):
            return node.id not in WHOLE and self.get(node.id, False)
        if isinstance(node, ast.Attribute):
            predicted = node.attr in ("logits", "probs") and isinstance(node.value, ast.Call)
            return predicted or node.attr not in WHOLE and self.rounded(node.value)
        if isinstance(node, ast.UnaryOp):
            return isinstance(node.op, (ast.USub, ast.UAdd)) and self.rounded(node.operand)
        parts = {ast.BinOp: ("left", "right"), ast.IfExp: ("body", "orelse"), ast.Subscript: ("value",),
                 ast.Starred: ("value",), ast.List: ("elts",), ast.Tuple: ("elts",), ast.Set: ("elts",),
                 ast.ListComp: ("elt",), ast.GeneratorExp: ("elt",), ast.Dict: ("values",), ast.DictComp: ("value",)}
        found = [getattr(node, name) for name in parts.get(type(node), ())]
        return any(self.rounded(v) for part in found for v in (part if isinstance(part, list) else [part]))

    def called(self, node):
        "Return True if a call is known to give a rounded float."
        name, values = called(node), taken(node)
        builtin = isinstance(node.func, ast.Name) and name == "sum"
        if name in UNCHANGED or builtin:
            named = name in ("max", "min") and any(k.arg == "key" for k in node.keywords)  # one of some names
            return not named and any(self.rounded(v) for v in values)
        if name in SUMS:
            return not any(whole(v) for v in values)
        made = isinstance(node.func, ast.Name) and self.get(f"{name}()", False)
        return made or name in ROUNDED or computes(node.func)

    def assign(self, target, value):
        "Remember what is assigned to a name, or to each name of a tuple."
        if isinstance(target, ast.Name):
            self[target.id], self[f"{target.id}()"] = self.rounded(value), computes(value)
        if isinstance(target, (ast.Tuple, ast.List)):
            values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            each = values if len(values) == len(target.elts) else [value]*len(target.elts)
            for one, part in zip(target.elts, each):
                self.assign(one, part)


def sides(node):
    "Yield the two sides of each equality that an expression states."
    if isinstance(node, ast.Compare):
        values = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, values, values[1:]):
            if isinstance(op, ast.Eq):
                yield left, right
    if isinstance(node, ast.Call) and called(node) in EQUALS:
        alone = called(node) == "equal" and len(node.args) == 1
        both = [node.func.value, *node.args] if alone else node.args[:2]
        if len(both) == 2:
            yield both


def statements(body, functions):
    "Yield the statements of a module or function in order; functions among them are appended to `functions`."
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.append(node)
            continue
        yield node
        for block in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, block, []), functions)


def equalities(text):
    "Yield (line, source) of the equalities of rounded floats in a module or a cell, but those that are marked."
    yield from _within(ast.parse(text).body, Names(), text)


def _within(body, names, text):
    functions, lines = [], text.split("\n")
    for statement in statements(body, functions):
        marked = any(MARK.search(line) for line in lines[statement.lineno - 1:statement.end_lineno])
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                names.assign(target, statement.value)
        if isinstance(statement, (ast.Assert, ast.Expr, ast.Assign, ast.Return)) and not marked:
            for node in ast.walk(statement):
                for both in sides(node):
                    if any(map(names.rounded, both)) and not any(map(exact, both)):
                        yield node.lineno, ast.get_source_segment(text, node)
    for function in functions:
        yield from _within(function.body, Names(names), text)

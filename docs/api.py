"""Pages of the API: for each public name of a module its call, docstring, formula, a table of parameters, an example
from the notebook with its output, and a link to the cell that defines it."""
import ast
import html
import inspect
import re
import tokenize
from importlib import import_module
from itertools import groupby
from pathlib import Path

import nbformat
from doors import decorated_heads
from latex2mathml.converter import convert

LONGEST_EXAMPLE, LONGEST_OUTPUT = 18, 14  # lines


def with_mathml(text):
    "Replace formulas by MathML, which a browser shows without a script from elsewhere."
    text = re.sub(r"\$\$(.+?)\$\$", lambda m: convert(m[1], display="block"), text, flags=re.S)
    return re.sub(r"(?<![\\`\w])\$([^$`\n]+?)\$", lambda m: convert(m[1]), text)


def written_head(node, lines):
    "Return the head of a function as it is written, comments included."
    source = lines[node.lineno - 1:node.end_lineno]
    row, column = end_of_head(source)
    rest = source[row - 1][column:]
    comment = rest if rest.lstrip().startswith("#") else ""
    return inspect.cleandoc("\n".join([*source[:row - 1], source[row - 1][:column] + comment]))


def end_of_head(source):
    "Return (row from 1, column) of the colon that ends the head of a function."
    depth = 0
    for token in tokens(source):
        if token.type == tokenize.OP and token.string in "([{":
            depth += 1
        if token.type == tokenize.OP and token.string in ")]}":
            depth -= 1
        if token.string == ":" and not depth:
            return token.end


def tokens(lines):
    return tokenize.generate_tokens(iter(f"{line}\n" for line in lines).__next__)


def comments(lines):
    "Return {row: comment}, with rows from 1."
    found = {}
    try:
        for token in tokens(lines):
            if token.type == tokenize.COMMENT:
                found[token.start[0]] = token.string.lstrip("# ")
    except (tokenize.TokenError, StopIteration):
        pass  # the head has no body
    return found


def parameters(head):
    """Return the call and the rows of the table of a function: (names, types, defaults, meaning).

    Parameters on one line share its comment and therefore a row; a line with only a comment continues the row above."""
    function = ast.parse(f"{head}\n    pass").body[0]
    notes, a = comments(head.splitlines()), function.args
    positional = [*a.posonlyargs, *a.args]
    given = dict(zip([arg.arg for arg in positional[::-1]], a.defaults[::-1]))
    given |= {arg.arg: default for arg, default in zip(a.kwonlyargs, a.kw_defaults) if default}
    starred = {arg.arg: mark for arg, mark in ((a.vararg, "*"), (a.kwarg, "**")) if arg}
    listed = [arg for arg in (*positional, a.vararg, *a.kwonlyargs, a.kwarg) if arg and arg.arg not in ("self", "cls")]
    def last_line(arg):
        return max(node.end_lineno for node in (arg, arg.annotation, given.get(arg.arg)) if node)
    rows, ends = [], [function.returns.end_lineno] if function.returns else []
    for line, of_line in groupby(listed, last_line):
        of_line = list(of_line)
        following = [n for n in notes if n > line and not any(line < last_line(other) <= n for other in listed)]
        meaning = [notes.get(line, "")] + [notes[n] for n in following if n not in ends]
        rows.append((", ".join(code(starred.get(arg.arg, "") + arg.arg) for arg in of_line),
                     ", ".join(code(ast.unparse(arg.annotation)) for arg in of_line if arg.annotation),
                     ", ".join(code(ast.unparse(given[arg.arg])) for arg in of_line if arg.arg in given),
                     prose(" ".join(filter(None, meaning)))))
    if function.returns and ast.unparse(function.returns) != "None" or any(notes.get(end) for end in ends):
        rows.append(("**returns**", code(ast.unparse(function.returns)), "", prose(notes.get(ends[0], ""))))
    return call_of(a, given), rows


def call_of(arguments, given):
    "Return the arguments of a call as texts, without types."
    def texts(args):
        return [f"{arg.arg}={ast.unparse(given[arg.arg])}" if arg.arg in given else arg.arg
                for arg in args if arg.arg not in ("self", "cls")]
    a = arguments
    star = [f"*{a.vararg.arg}"] if a.vararg else ["*"]*bool(a.kwonlyargs)
    before = texts(a.posonlyargs) + ["/"]*bool(a.posonlyargs)
    return [*before, *texts(a.args), *star, *texts(a.kwonlyargs), *([f"**{a.kwarg.arg}"] if a.kwarg else [])]


def fields(node, lines):
    "Return the call and the rows of a class without `__init__`, whose fields are its parameters."
    rows, call = [], []
    for field in node.body:
        if not isinstance(field, ast.AnnAssign) or field.target.id.startswith("_"):
            continue
        default, note = field.value, comments([lines[field.end_lineno - 1]]).get(1, "")
        if isinstance(default, ast.Call) and ast.unparse(default.func) == "Field":  # of pydantic
            note += f" (`{', '.join(map(ast.unparse, default.keywords))}`)"*bool(default.keywords)
            default = default.args[0] if default.args else None
        default = ast.unparse(default) if default else ""
        rows.append((code(field.target.id), code(ast.unparse(field.annotation)), code(default), prose(note)))
        call.append(field.target.id + f"={default}"*bool(default))
    return call, rows


def code(text):
    return f"<code>{html.escape(text)}</code>".replace("|", "&#124;") if text else ""


def prose(text):
    "Escape what a table or Markdown would take for a mark, outside of code."
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(code(part.strip("`")) if part.startswith("`") else
                   re.sub(r"([*_\[\]])", r"\\\1", html.escape(part)).replace("|", "&#124;") for part in parts)


def errors(doc):
    "Return rows for the errors that a docstring names."
    found = re.findall(r"\b[Rr]aises? (\w*Error) (.+?)(?=; |\.(?:\s|$)|$)", " ".join(doc.split()))
    return [("**raises**", code(error), "", prose(when)) for error, when in found]


def table(rows):
    if not any("".join(row[1:]) for row in rows):
        return []
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return ["\n".join(["| parameter | type | default | meaning |", "|---|---|---|---|", *lines])]


class Lessons:
    "The cells of a notebook: formulas, definitions and examples of public names."
    def __init__(self, content, page):
        self.cells, self.page = nbformat.read(content, 4).cells, page
        self.shown = set()  # numbers of cells whose formula or example a name above has

    def definition(self, name):
        "Return the number of the cell that defines a name, or None."
        pattern = rf"^(?:async )?(?:def|class) {name}\b|^{name} *="
        return next((i for i, cell in enumerate(self.cells) if cell.cell_type == "code"
                     and re.match(r"#\| ?export", cell.source) and re.search(pattern, cell.source, re.M)), None)

    def about(self, name):
        "Return (formula, example, link to the defining cell) as lists of paragraphs."
        i = self.definition(name)
        if i is None:
            return [], [], []
        link = f"[Source and explanation](../{self.page}#cell-id={self.cells[i].id})"
        return self.formula(i), self.example(name, i), [link]

    def formula(self, i):
        before = i - 1
        if before < 0 or before in self.shown or self.cells[before].cell_type != "markdown":
            return []
        self.shown.add(before)
        return [with_mathml(block) for block in re.findall(r"\$\$.+?\$\$", self.cells[before].source, re.S)[:2]]

    def example(self, name, i):
        for number, cell in list(enumerate(self.cells))[i + 1:]:
            is_lesson = cell.cell_type == "code" and not cell.source.startswith("#|")
            if not is_lesson or not re.search(rf"\b{name}\b", cell.source) or number in self.shown:
                continue
            if len(cell.source.splitlines()) > LONGEST_EXAMPLE:
                continue
            self.shown.add(number)
            printed = printed_lines(cell)
            return ["*Example*", f"```python\n{cell.source}\n```", *([f"```text\n{printed}\n```"] if printed else [])]
        return []


def printed_lines(cell):
    "Return what a cell printed and its value as text, without what only a notebook shows."
    texts = []
    for output in cell.get("outputs", []):
        if output.get("name") == "stdout":
            texts.append(output.text)
        data = output.get("data", {})
        if "text/plain" in data and not {"text/html", "image/png", "text/markdown"} & data.keys():
            texts.append(data["text/plain"])
    lines = "\n".join(text.rstrip("\n") for text in texts).splitlines()
    return "\n".join(lines[:LONGEST_OUTPUT] + ["…"]*(len(lines) > LONGEST_OUTPUT))


def wrapped(name, call):
    "Return a call in lines of at most 84 characters; `call` is None for a property."
    if call is None:
        return name
    lines, indent = [f"{name}("], " "*(len(name) + 1 if len(name) < 30 else 4)
    for i, part in enumerate(call):
        part += "," if i + 1 < len(call) else ")"
        if len(lines[-1]) + len(part) > 83 and not lines[-1].endswith("("):
            lines.append(indent + part)
        else:
            lines[-1] += part if lines[-1].endswith("(") else f" {part}"
    return "\n".join(lines) + ")"*(not call)


def split_example(doc):
    "Return a docstring without its `>>>` example, and the example as paragraphs, if any; as text, `>>>` is a quote."
    text, _, example = doc.partition("\n\n>>> ")
    return text, ["*Example*", f"```python\n>>> {example}\n```"] if example else []


def entry(node, lines, lessons, level=2, of="", head=None):
    "Return a function, or a class with its methods, as Markdown; `head` replaces the head as it is written."
    doc, is_class = ast.get_docstring(node) or "", isinstance(node, ast.ClassDef)
    methods = [n for n in node.body if is_class and isinstance(n, ast.FunctionDef)]
    init = [n for n in methods if n.name == "__init__"]
    if is_class and not init:
        call, rows = fields(node, lines)
    else:
        call, rows = parameters(head or written_head(init[0] if is_class else node, lines))
    if is_class and init:
        rows = [row for row in rows if row[0] != "**returns**"]
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    if "property" in marks or "cached_property" in marks:
        call = None
    formula, example, link = lessons.about(node.name) if level == 2 else ([], [], [])
    doc, typed = split_example(doc)
    parts = [f"{'#'*level} {of}{node.name}", f"```python\n{wrapped(of + node.name, call)}\n```", doc, *formula,
             *table(rows + errors(doc)), *(typed or example), *link]
    public = [method for method in methods if not method.name.startswith("_") and ast.get_docstring(method)]
    parts += [entry(method, lines, lessons, level + 1, f"{node.name}.") for method in public]
    return "\n\n".join(part for part in parts if part)


def api_page(module_name, notebook, place, content=None):
    "Return the page of a module; `content` is the notebook's executed copy, with outputs, and `place` its page."
    module = import_module(f"calibnb.{module_name}")
    lines = Path(module.__file__).read_text().splitlines()
    own = {n.name: n for n in ast.parse("\n".join(lines)).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    heads, lessons = decorated_heads(Path(module.__file__).parent), Lessons(content or notebook, place)
    parts = [entry(own[public], lines, lessons, head=heads.get(public)) for public in module.__all__ if public in own]
    where = f"Explained in [`{place}`](../{place})."
    return "\n\n".join([f"# calibnb.{module_name}", module.__doc__, where, *parts]) + "\n"

"""`make docs`: the documentation site, from the notebooks, the docstrings and the gallery, into _docs/site.

    python docs/make_docs.py            executes the notebooks of the modules first, those that changed since the last time
    python docs/make_docs.py --as-is    shows them as they are committed, without outputs

mkdocs-material with mkdocs-jupyter: pages that are plain Markdown stay plain Markdown, notebooks are shown as Jupyter
shows them, search and fonts need no network, and the tree below is that of the repository, so links hold in both.
"""
import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
import tokenize
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import nbformat
import yaml
from bs4 import BeautifulSoup
from latex2mathml.converter import convert
from nbclient import NotebookClient

from calibnb.processes.kernels import KERNEL_MODULES, forked_kernels, spare_kernel
from calibnb.processes.pool import core_count, in_processes

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT/"_docs"
SOURCE, SITE, EXECUTED = DOCS/"source", DOCS/"site", DOCS/"executed"
MODULES = {}  # notebook -> the module that it exports, e.g. 'metrics.bins'
for path in sorted((ROOT/"nbs").rglob("[0-9]*.ipynb")):
    if found := re.search(r'#\|\s*default_exp (\S+?)(\\n)?"', path.read_text()):
        MODULES[path] = found[1]
EXPLORE = [ROOT/"nbs"/"explore"/f"{name}.ipynb" for name in ("first_five_minutes", "reliability", "losses", "simplex", "runs")]
GALLERY = sorted((ROOT/"runs"/"gallery").glob("*.ipynb"))


def below(path):
    "Its place in the tree, as text."
    return path.relative_to(ROOT).as_posix()


def execute(path, tell=None):
    "Run a notebook and keep the executed copy, named by what it and the library are."
    code = b"".join(p.read_bytes() for p in [path, *sorted((ROOT/"calibnb").rglob("*.py"))])
    kept = EXECUTED/f"{path.parent.name}-{path.stem}-{sha256(code).hexdigest()[:12]}.ipynb"
    if not kept.exists():
        nb = nbformat.read(path, 4)
        with spare_kernel():
            waits = dict.fromkeys(("timeout", "startup_timeout", "iopub_timeout"), 600)   # also on a busy machine
            beside = dict(metadata=dict(path=str(path.parent)))
            NotebookClient(nb, kernel_manager_class=forked_kernels(), resources=beside, store_widget_state=False, **waits).execute()
        EXECUTED.mkdir(parents=True, exist_ok=True)
        for old in EXECUTED.glob(f"{path.parent.name}-{path.stem}-*.ipynb"):
            old.unlink()
        nbformat.write(nb, kept)
    return str(kept)


def place(path, content):
    "A notebook as a page: without what only nbdev needs, links leading to pages."
    nb = nbformat.read(content, 4)
    nb.cells = [c for c in nb.cells if not re.match(r"#\| ?(hide|default_exp)", c.source)]
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\$\$(.+?)\$\$", lambda m: convert(m[1], display="block"), cell.source, flags=re.S)   # MathML: no script from elsewhere
            cell.source = re.sub(r"(?<![\\`\w])\$([^$`\n]+?)\$", lambda m: convert(m[1]), cell.source)
            cell.source = re.sub(r"\]\(\.\./experiments/\)", "](../../runs/gallery/index.html)", cell.source)
            cell.source = re.sub(r"\]\(\.\./experiments/(\w+)\.ipynb\)", r"](../../runs/gallery/\1.html)", cell.source)
            cell.source = re.sub(r"\]\((?!http)([\w./]+)\.ipynb\)", r"](\1.html)", cell.source)
        else:
            cell.source = re.sub(r"^#\| ?export\n", "", cell.source)
            cell.outputs = [o for o in cell.get("outputs", []) if o.get("name") != "stderr" and "application/vnd.jupyter.widget-view+json" not in o.get("data", {})]
    nbformat.write(nb, SOURCE/below(path))


def signature(node, lines):
    "The head of a function as it is written, comments included: they are part of the documentation."
    source, depth = lines[node.lineno - 1:node.end_lineno], 0
    for token in tokenize.generate_tokens(iter(f"{line}\n" for line in source).__next__):
        depth += (token.string in "([{") - (token.string in ")]}") if token.type == tokenize.OP else 0
        if token.string == ":" and not depth:
            (row, column), rest = token.end, source[token.end[0] - 1][token.end[1]:]
            return "\n".join(f"@{ast.unparse(d)}" for d in node.decorator_list) + "\n"*bool(node.decorator_list) + inspect.cleandoc("\n".join([*source[:row - 1], source[row - 1][:column] + (rest if rest.lstrip().startswith("#") else "")]))


def entry(node, lines, level=2, of=""):
    name = f"{of}{node.name}"
    decorators = "".join(f"@{ast.unparse(d)}\n" for d in node.decorator_list)
    code = [f"{decorators}class {node.name}{'(' + ', '.join(ast.unparse(b) for b in node.bases) + ')' if node.bases else ''}"] if isinstance(node, ast.ClassDef) else [signature(node, lines)]
    text = [f"{'#'*level} {name}", "", "```python", *code, "```", "", ast.get_docstring(node) or "", ""]
    if isinstance(node, ast.ClassDef):
        fields = [lines[n.lineno - 1].strip() for n in node.body if isinstance(n, ast.AnnAssign) and not n.target.id.startswith("_")]
        init = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        if init or fields:
            text[3:4] = ["\n".join([code[0], *([signature(init[0], lines)] if init else fields)])]
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and ast.get_docstring(method):
                text.append(entry(method, lines, level + 1, f"{node.name}."))
    return "\n".join(text)


def api_page(notebook):
    "The public names of a module: signatures as they are written, and docstrings."
    name = MODULES[notebook].removesuffix(".__init__")
    module = import_module(f"calibnb.{name}")
    lines = Path(module.__file__).read_text().splitlines()
    own = {n.name: n for n in ast.parse("\n".join(lines)).body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    parts = [entry(own[public], lines) for public in module.__all__ if public in own]
    return name, "\n".join([f"# calibnb.{name}", "", module.__doc__, "", f"Explained, with examples, in [`{below(notebook)}`](../{below(notebook)}).", "", *parts])


def gather(run):
    "All pages under SOURCE; returns the navigation."
    shutil.rmtree(SOURCE, ignore_errors=True)
    for folder in ("nbs/explore", "runs/gallery", "api", *(below(p.parent) for p in MODULES)):
        (SOURCE/folder).mkdir(parents=True, exist_ok=True)
    for page in ("README.md", "CONTRIBUTING.md", "runs/README.md", "runs/gallery/README.md", "benchmarks/RESULTS.md", "docs/how-to.md"):
        (SOURCE/page).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT/page, SOURCE/page)
    shutil.copy(ROOT/"docs"/"wide.css", SOURCE)
    for picture in (ROOT/"runs"/"gallery").glob("*.png"):
        shutil.copy(picture, SOURCE/"runs"/"gallery")
    contents = {p: p for p in (*MODULES, *EXPLORE, *GALLERY)}
    if run:
        todo = [*MODULES, *EXPLORE]
        for done in in_processes(execute, [(p,) for p in todo], core_count(), preload=[*KERNEL_MODULES, "nbclient"]):
            if done.error:
                raise SystemExit(f"{below(todo[done.index])}: {done.error}")
            contents[todo[done.index]] = done.value
    for path, content in contents.items():
        place(path, content)
    title = lambda p: next(c.source for c in nbformat.read(p, 4).cells if c.cell_type == "markdown").splitlines()[0].lstrip("# ")
    methods, api = {}, {}
    for notebook, module in MODULES.items():
        wing = module.split(".")[0]
        methods.setdefault(wing, []).append({title(notebook): below(notebook)})
        if not module.endswith("__init__"):  # a door defines nothing of its own
            name, page = api_page(notebook)
            (SOURCE/"api"/f"{name}.md").write_text(page)
            api.setdefault(wing, []).append({f"calibnb.{name}": f"api/{name}.md"})
    methods, api = ([{wing: pages} if len(pages) > 1 else pages[0] for wing, pages in part.items()] for part in (methods, api))
    return [{"Home": "README.md"}, {"Explore": [{title(p): below(p)} for p in EXPLORE]}, {"How to": "docs/how-to.md"},
            {"Studies": ["runs/gallery/README.md", *({title(p): below(p)} for p in GALLERY), {"Figures and tables of the papers": "runs/README.md"}]},
            {"Methods": methods}, {"API": api}, {"Project": [{"Changing calibnb": "CONTRIBUTING.md"}, {"Speed": "benchmarks/RESULTS.md"}]}]


def broken_links(site):
    "Links, pictures and scripts of the site that lead nowhere on it, or that a page would fetch from elsewhere: (page, link)."
    ids, found = {}, []
    pages = {p: BeautifulSoup(p.read_text(), "html.parser") for p in site.rglob("*.html")}
    for path, page in pages.items():
        ids[path.resolve()] = {t[key] for t in page.find_all() for key in ("id", "name") if t.has_attr(key) and (key == "id" or t.name == "a")}
    for path, page in pages.items():
        if path.name == "404.html":
            continue
        for tag, attribute in (("a", "href"), ("img", "src"), ("link", "href"), ("script", "src")):
            for link in (t[attribute] for t in page.find_all(tag) if t.get(attribute)):
                file, _, anchor = link.partition("#")
                if re.match(r"([a-z]+:|//)", file, re.I):
                    if tag != "a" and not file.startswith("data:"):
                        found.append((path.relative_to(site).as_posix(), link))
                    continue
                file = file.partition("?")[0]
                target = (path.parent/unquote(file)).resolve() if file else path.resolve()
                target = target/"index.html" if target.is_dir() else target
                if not (target.exists() and target.is_relative_to(site.resolve())) or anchor and target in ids and unquote(anchor) not in ids[target]:
                    found.append((path.relative_to(site).as_posix(), link))
    return found


def build(run=True):
    config = yaml.safe_load((ROOT/"docs"/"mkdocs.yml").read_text())
    DOCS.mkdir(exist_ok=True)
    if run:
        os.environ["CALIBNB_RUNS"] = str(DOCS/"runs")  # of the notebooks that are executed
    config["nav"] = gather(run)
    (DOCS/"mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", str(DOCS/"mkdocs.yml")], check=True, cwd=DOCS, env=dict(os.environ, NO_MKDOCS_2_WARNING="1"))
    if broken := broken_links(SITE):
        raise SystemExit("links that lead nowhere:\n" + "\n".join(f"  {page}: {link}" for page, link in broken))
    print(f"{SITE/'index.html'}: {sum(1 for _ in SITE.rglob('*.html'))} pages, no broken links; the search needs a server: python -m http.server -d {SITE}")


if __name__ == "__main__":
    build(run="--as-is" not in sys.argv[1:])

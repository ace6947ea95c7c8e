"""Build the documentation site in _docs/site from notebooks, docstrings and the gallery; `make docs` calls this.

    python docs/make_docs.py            first executes the notebooks of nbs/explore that changed since the last build
    python docs/make_docs.py --as-is    executes nothing

Rooms show the outputs that are stored in them.

mkdocs-material and mkdocs-jupyter make the pages. Search and fonts need no network. The site has the folders of the
repository, so relative links work in both.
"""
import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
import yaml
from api import api_page, with_mathml
from nbclient import NotebookClient

from calibnb.processes.kernels import KERNEL_MODULES, forked_kernels, prestarted_kernel
from calibnb.processes.pool import core_count, in_processes

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT/"_docs"
SOURCE, SITE, EXECUTED = DOCS/"source", DOCS/"site", DOCS/"executed"
MODULES = {}  # notebook -> the module that it exports, e.g. 'metrics.bins'
for path in sorted((ROOT/"nbs").rglob("[0-9]*.ipynb")):
    if found := re.search(r'#\|\s*default_exp (\S+?)(\\n)?"', path.read_text()):
        MODULES[path] = found[1]
WIDGETS = "first_five_minutes", "your_loss", "reliability", "losses", "simplex", "runs"  # from simple to special
EXPLORE = [ROOT/"nbs"/"explore"/f"{name}.ipynb" for name in WIDGETS]
GALLERY = sorted((ROOT/"runs"/"gallery").rglob("*.ipynb"))


def below(path):
    "Return the path relative to the root of the repository, as text."
    return path.relative_to(ROOT).as_posix()


def execute(path, send=None):
    "Execute a notebook unless an executed copy exists; the name of the copy has a hash of notebook and library."
    code = b"".join(p.read_bytes() for p in [path, *sorted((ROOT/"calibnb").rglob("*.py"))])
    kept = EXECUTED/f"{path.parent.name}-{path.stem}-{sha256(code).hexdigest()[:12]}.ipynb"
    if kept.exists():
        return str(kept)
    nb = nbformat.read(path, 4)
    nb.cells = [cell for cell in nb.cells if "nbdev_export()" not in cell.source]  # it would rewrite modules in use
    waits = dict.fromkeys(("timeout", "startup_timeout", "iopub_timeout"), 600)  # seconds, also on a busy machine
    beside = dict(metadata=dict(path=str(path.parent)))
    options = dict(kernel_manager_class=forked_kernels(), resources=beside, store_widget_state=False)
    with prestarted_kernel():
        NotebookClient(nb, **options, **waits).execute()
    EXECUTED.mkdir(parents=True, exist_ok=True)
    for old in EXECUTED.glob(f"{path.parent.name}-{path.stem}-*.ipynb"):
        old.unlink()
    nbformat.write(nb, kept)
    return str(kept)


WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"  # shows nothing without a kernel
LINKS = {  # in a notebook -> on the site
    r"\]\(\.\./experiments/\)": "](../../runs/gallery/index.html)",
    r"\]\(\.\./experiments/(\w+)\.ipynb\)": r"](../../runs/gallery/\1.html)",
    r"\]\((?!http)([\w./]+)\.ipynb\)": r"](\1.html)",
    r"\]\(\.\./\.\./docs/how-to/README\.md\)": "](../../docs/how-to/index.html)",
    r"\]\(\.\./\.\./docs/([\w/-]+)\.md\)": r"](../../docs/\1.html)",
}


def place(path, content):
    "Write a notebook as a page of the site: without directives of nbdev, and with links to pages."
    nb = nbformat.read(content, 4)
    nb.cells = [c for c in nb.cells if not re.match(r"#\| ?(hide|default_exp)", c.source)]
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            cell.source = with_links_of_the_site(with_mathml(cell.source))
        else:
            cell.source = re.sub(r"^#\| ?export\n", "", cell.source)
            cell.outputs = [o for o in cell.get("outputs", []) if is_shown(o)]
    nbformat.write(nb, SOURCE/below(path))


def is_shown(output):
    return output.get("name") != "stderr" and WIDGET_VIEW not in output.get("data", {})


def with_links_of_the_site(text):
    for in_notebook, on_site in LINKS.items():
        text = re.sub(in_notebook, on_site, text)
    return text


def page_of(notebook, content=None):
    "Return the name of the module of a notebook, and the page of its API; `content` is the executed notebook."
    name = MODULES[notebook].removesuffix(".__init__")
    return name, api_page(name, notebook, below(notebook), content)


HOW_TO = [f"docs/how-to/{page}.md" for page in
          ("README", "install", "audit", "production", "train", "cluster", "own", "papers")]
PAPERS = sorted(below(page) for page in (ROOT/"runs"/"gallery").glob("*.md") if page.stem != "README")
PAGES = ("README.md", "CONTRIBUTING.md", "runs/README.md", "runs/gallery/README.md", "runs/gallery/cifar10/README.md",
         *PAPERS, *HOW_TO, "benchmarks/RESULTS.md", "docs/checks.md")  # pages that are Markdown files


def gather(run):
    "Write all pages to SOURCE; return the navigation."
    shutil.rmtree(SOURCE, ignore_errors=True)
    for folder in ("nbs/explore", "runs/gallery/figures", "api", *(below(p.parent) for p in MODULES)):
        (SOURCE/folder).mkdir(parents=True, exist_ok=True)
    for page in PAGES:
        (SOURCE/page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT/page, SOURCE/page)
    (SOURCE/"README.md").write_text(home((ROOT/"README.md").read_text(encoding="utf-8")), encoding="utf-8")
    for page, text in check_pages((SOURCE/"docs"/"checks.md").read_text(encoding="utf-8")).items():
        (SOURCE/page).parent.mkdir(exist_ok=True)
        (SOURCE/page).write_text(text, encoding="utf-8")
    shutil.copy(ROOT/"docs"/"site.css", SOURCE)
    for name in ("house.svg", "audit-1.schema.json"):
        shutil.copy(ROOT/"docs"/name, SOURCE/"docs")
    for picture in (ROOT/"runs"/"gallery").rglob("*.png"):
        shutil.copy(picture, SOURCE/below(picture))
    contents = {p: p for p in (*MODULES, *EXPLORE, *GALLERY)} | (executed(EXPLORE) if run else {})
    for path, content in contents.items():
        place(path, content)
    for notebook in rooms():
        name, page = page_of(notebook, contents[notebook])
        (SOURCE/"api"/f"{name}.md").write_text(page)
    return navigation()


WAYS = [  # title, what one does, where to, the first command
    ("Check a model", "Is it calibrated, and which calibrator helps? One command on a file of predictions.",
     "docs/how-to/audit.html", "calibnb audit predictions.npz"),
    ("Look and play", "Losses, bins and networks with sliders, in JupyterLab.",
     "nbs/explore/first_five_minutes.html", "calibnb lab"),
    ("Train", "Calibration losses and γ-Net in Python, or trainings from the command line.",
     "docs/how-to/train.html#compare-losses-over-seeds", "from calibnb.losses import FocalLoss"),
    ("Check a paper", "The claims of five papers as notebooks that anyone can run.",
     "runs/gallery/index.html", "calibnb run nll_overfitting"),
]


def home(readme):
    "Return the first page: the README, with cards for the four ways in and pictures of the studies."
    ways = [f'<a href="{to}"><b>{name}</b><span>{text}</span><code>{command}</code></a>'
            for name, text, to, command in WAYS]
    studies = [f'<a href="{page}.html"><img src="{page}.png" alt="" loading="lazy"><span>{title(path)}</span></a>'
               for path in GALLERY if path.with_suffix(".png").exists()
               for page in [below(path).removesuffix(".ipynb")]]
    before, heading, after = readme.partition("## Two commands")
    start, quote, rest = before.partition("\n\n> ")
    about, break_, rest = rest.partition("\n\n")
    grids = ['<div class="{}">{}</div>'.format(kind, "".join(cards)) for kind, cards in
             (("ways", ways), ("studies", studies))]
    options = "---\nhide: [navigation]\n---\n"
    return f"{options}{start}{quote}{about}\n\n{grids[0]}\n\n{rest}## Studies\n\n{grids[1]}\n\n{heading}{after}"


def check_pages(text):
    "Return page -> text: the list of the checks, and a page for the section of each code."
    index, *sections = re.split(r"^## ", text, flags=re.M)
    titles = dict(re.findall(r"^\| \[(CNB\d+)\]\(\S+\) \| (.+) \|$", index, re.M))
    pages = {"docs/checks.md": re.sub(r"\(#(cnb\d+)\)", lambda link: f"(checks/{link[1].upper()}.md)", index)}
    for section in sections:
        code, _, body = section.partition("\n")
        linked = re.sub(r"\bCNB\d+\b", r"[\g<0>](\g<0>.md)", body)
        pages[f"docs/checks/{code}.md"] = f"# {code}: {titles[code]}\n{linked}\n[All checks](../checks.md)\n"
    return pages


def executed(notebooks):
    "Execute notebooks in parallel; return notebook -> executed copy."
    copies, jobs = {}, [(notebook,) for notebook in notebooks]
    for done in in_processes(execute, jobs, core_count(), preload=[*KERNEL_MODULES, "nbclient"]):
        if done.error:
            raise SystemExit(f"{below(notebooks[done.index])}: {done.error}")
        copies[notebooks[done.index]] = done.value
    return copies


def rooms():
    "Return the notebooks of all modules except the doors."
    return [notebook for notebook, module in MODULES.items() if not module.endswith("__init__")]


def title(path):
    first = next(c.source for c in nbformat.read(path, 4).cells if c.cell_type == "markdown")
    return first.splitlines()[0].lstrip("# ")


def navigation():
    methods = by_wing({notebook: {title(notebook): below(notebook)} for notebook in MODULES})
    names = {notebook: MODULES[notebook] for notebook in rooms()}
    api = by_wing({notebook: {f"calibnb.{name}": f"api/{name}.md"} for notebook, name in names.items()})
    studies = [{title(path): below(path)} for path in GALLERY]
    return [
        {"Home": "README.md"},
        {"Explore": [{title(path): below(path)} for path in EXPLORE]},
        {"How to": HOW_TO},
        {"Checks": list(check_pages((ROOT/"docs"/"checks.md").read_text(encoding="utf-8")))},
        {"Studies": ["runs/gallery/README.md", *studies, "runs/gallery/cifar10/README.md"]},
        {"Papers": [{"Where each figure and table is drawn": "runs/README.md"}, *PAPERS]},
        {"Methods": methods},
        {"API": api},
        {"Project": [{"Changing calibnb": "CONTRIBUTING.md"}, {"Speed": "benchmarks/RESULTS.md"}]},
    ]


def by_wing(pages):
    "Group the pages of notebooks by wing; a wing with one page is not a group."
    wings = {}
    for notebook, page in pages.items():
        wings.setdefault(MODULES[notebook].split(".")[0], []).append(page)
    return [{wing: found} if len(found) > 1 else found[0] for wing, found in wings.items()]


LINKING = ("a", "href"), ("img", "src"), ("link", "href"), ("script", "src")  # tag, attribute


class _Tags(HTMLParser):
    "The tags of a page and their attributes, in order; building a tree would take three times as long."
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def broken_links(site):
    "Return (page, link) of each link without a target on the site, and of each file from another site."
    pages = {path: _Tags(path.read_text()).found for path in site.rglob("*.html")}
    ids = {path.resolve(): anchors(tags) for path, tags in pages.items()}
    found = []
    for path, tags in pages.items():
        if path.name == "404.html":
            continue
        links = [(tag, has[name]) for tag, name in LINKING for kind, has in tags if kind == tag and has.get(name)]
        broken = [link for tag, link in links if is_broken(tag, link, path, site, ids)]
        found += [(path.relative_to(site).as_posix(), link) for link in broken]
    return found


def anchors(tags):
    "Return the ids and names that a link may have after its #."
    names = {has["name"] for tag, has in tags if tag == "a" and "name" in has}
    return names | {has["id"] for _, has in tags if "id" in has}


def is_broken(tag, link, path, site, ids):
    file, _, anchor = link.partition("#")
    if re.match(r"([a-z]+:|//)", file, re.I):  # another site: allowed only for links that a reader clicks
        return tag != "a" and not file.startswith("data:")
    file = file.partition("?")[0]
    target = (path.parent/unquote(file)).resolve() if file else path.resolve()
    if target.is_dir():
        target = target/"index.html"
    if not target.exists() or not target.is_relative_to(site.resolve()):
        return True
    return bool(anchor) and target in ids and unquote(anchor) not in ids[target]


def build(run=True, search=True):
    "Build the site; the search index takes half of the time."
    config = yaml.safe_load((ROOT/"docs"/"mkdocs.yml").read_text())
    if not search:
        config["plugins"].remove("search")
    DOCS.mkdir(exist_ok=True)
    if run:
        os.environ["CALIBNB_RUNS"] = str(DOCS/"runs")  # for runs of the executed notebooks
    config |= dict(nav=gather(run), hooks=[str(ROOT/"docs"/"templates.py")])
    (DOCS/"mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "-f", str(DOCS/"mkdocs.yml")]
    subprocess.run(command, check=True, cwd=DOCS, env=dict(os.environ, NO_MKDOCS_2_WARNING="1"))
    if broken := broken_links(SITE):
        raise SystemExit("broken links:\n" + "\n".join(f"  {page}: {link}" for page, link in broken))
    pages = len(list(SITE.rglob("*.html")))
    print(f"{SITE/'index.html'}: {pages} pages, no broken links; "
          f"the search needs a server: python -m http.server -d {SITE}")


if __name__ == "__main__":
    build(run="--as-is" not in sys.argv[1:])

"""Write the names of all registries into `nbs/00_core/07_names.ipynb`, `make sync` calls this."""
import json
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOTEBOOK, CELL = "nbs/00_core/07_names.ipynb", "4e2a4ea2"


def registries():
    "Return, for each kind, the names of its registry in the order of the registry; imports torch."
    from calibnb.data import list_corruptions, list_data
    from calibnb.data.downloads import downloads
    from calibnb.files.formats import READERS
    from calibnb.metrics.measure import COLUMNS
    from calibnb.losses import list_losses
    from calibnb.metrics.registered import metrics
    from calibnb.models import list_models
    from calibnb.posthoc import list_calibrators
    from calibnb.sweep.engines import engines
    from calibnb.train.recipe import PRESETS
    from calibnb.train.recorders import recorders
    found = {
        "data": list_data(), "data to download": downloads, "model": list_models(), "loss": list_losses(),
        "calibrator": list_calibrators(), "metric": metrics, "metric of every table": COLUMNS,
        "recorder": recorders, "preset": PRESETS, "corruption": list_corruptions(), "engine": engines,
        "file format": READERS}
    return {kind: list(names) for kind, names in found.items()}


def cell(names):
    "Return the source of the cell."
    lines = ["#| export", "NAMES = {  # kind -> names; `make sync` writes this cell"]
    for kind, each in names.items():
        text = textwrap.fill(", ".join(map(repr, each)), 108, break_long_words=False, break_on_hyphens=False)
        lines += [f"    {kind!r}: [", textwrap.indent(text, " "*8), "    ],"]
    return "\n".join([*lines, "}"])


def write(root=ROOT):
    path = root/NOTEBOOK
    notebook = json.loads(path.read_text(encoding="utf-8"))
    found = next(c for c in notebook["cells"] if c["id"] == CELL)
    found["source"] = cell(registries()).splitlines(keepends=True)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path.cwd())

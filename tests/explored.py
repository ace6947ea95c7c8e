"Notebooks of nbs/explore, executed without a front end."
import shutil

import nbformat
from conftest import ROOT, for_slow_kernels, forks
from nbconvert import HTMLExporter
from papermill import execute_notebook

from calibnb.processes.kernels import forked_kernels

EXPLORE = ROOT/"nbs"/"explore"


def check_pictures(name, folder, preds):
    "Execute a notebook in a folder; each explorer is a picture whose text says what is drawn, on a page, too."
    forks()
    shutil.copy(EXPLORE/f"{name}.ipynb", folder)
    preds.save(folder/"preds.safetensors")
    given = dict(file=str(folder/"preds.safetensors")) if name == "reliability" else {}
    options = dict(progress_bar=False, kernel_manager_class=forked_kernels(), **for_slow_kernels())
    execute_notebook(folder/f"{name}.ipynb", folder/"out.ipynb", given, **options)
    nb = nbformat.read(folder/"out.ipynb", 4)
    shown = [o for c in nb.cells for o in c.get("outputs", []) if "image/png" in o.get("data", {})]
    page, _ = HTMLExporter().from_notebook_node(nb)
    if name != "start":
        assert shown and "data:image/png" in page
        assert all(o["metadata"]["image/png"]["alt"] == o["data"]["text/plain"] for o in shown)
    if given:
        assert "n = 3,000" in shown[0]["data"]["text/plain"]

"The documentation site and its how-to: built, executed, and without a link that leads nowhere."
import os
import re
import sys
from importlib.util import find_spec

import nbformat
import pytest
from conftest import LATE, ROOT, forks, on_processes, write_notebook

from calibnb.processes.pool import in_processes

sys.path.insert(0, str(ROOT/"docs"))
import make_docs as build  # noqa: E402


# recipes for packages of `[dev]` alone, and what holds after each: the saved model gives what the calibrator gives
RECIPES = dict(
    transformers="""
saved = BertForSequenceClassification.from_pretrained('calibrated').eval()
logits = saved(input_ids=torch.stack([row['input_ids'] for row in val])).logits
assert torch.allclose(logits.softmax(1), torch.tensor(scaling.transform(predicted.predictions)).float(), atol=1e-5)
assert trainer.evaluate()['eval_nll'] < predicted.metrics['test_nll']""",
    lightning="""
saved = Classifier.load_from_checkpoint('calibrated.ckpt', weights_only=True).cpu()
assert torch.allclose(saved.network(val.dataset.tensors[0]).softmax(1), scaling.transform(logits).float(), atol=1e-5)
assert 0 < trainer.callback_metrics['val_ece'] < .2""",
    mlflow="""
assert numpy.allclose(probs, isotonic.transform(logits[:3]), atol=1e-6)""")


def how_to():
    text = "\n".join((ROOT/page).read_text(encoding="utf-8") for page in build.HOW_TO)
    return re.findall(r"```python\n(.*?)```", text, re.S)


def package_of(block):
    "The package of a recipe that stands alone; None for the other blocks of the how-to, which are one program."
    return next((name for name in RECIPES if re.search(rf"^(from|import) {name}\b", block, re.M)), None)


def executed(code, folder, send=None):
    os.chdir(folder)
    exec(code, dict(__name__="__main__"))


def test_the_how_to_runs(tmp_path):
    blocks = [block for block in how_to() if not package_of(block)]
    code = "\n".join(block for block in blocks if find_spec("onnxscript") or "onnx" not in block)
    on_processes(1, executed, code, tmp_path)
    assert (tmp_path/"calibrator.safetensors").exists() and list((tmp_path/"my_runs").glob("*/*/result.json"))


@pytest.mark.parametrize("package", RECIPES)
def test_a_recipe_saves_what_the_calibrator_gives(package, tmp_path):
    if not find_spec(package):
        pytest.skip(f"{package} is not installed")
    recipe, = [block for block in how_to() if package_of(block) == package]
    ended, = in_processes(executed, [(recipe + RECIPES[package], tmp_path)], 1)
    if ended.error:
        raise ended.error


def test_what_a_page_shows_may_arrive_late_and_its_module_is_not_exported(tmp_path, monkeypatch):
    "Pages are executed side by side; each would rewrite modules that the others import."
    forks()
    monkeypatch.setattr(build, "EXECUTED", tmp_path/"executed")
    write_notebook(tmp_path/"room.ipynb", LATE, "#| hide\nimport nbdev; nbdev.nbdev_export()")
    cell, = nbformat.read(build.execute(tmp_path/"room.ipynb"), 4).cells
    assert cell.source == LATE and [o.data["text/plain"] for o in cell.outputs] == ["'late'"]


def test_every_room_runs_in_a_kernel_as_readers_run_it(tmp_path, monkeypatch):
    "There an event loop runs already, cells are files of the user, and nothing is skipped."
    forks()
    monkeypatch.setattr(build, "EXECUTED", tmp_path)
    assert len(build.executed(build.rooms())) == len(build.rooms())


LINKING = "text/html", "text/markdown"  # kinds of output that may hold links


def only_what_may_link(place):
    "`make_docs.place` as a cell of text and one of code: the others hold no links and take most of the time."
    def placed(path, content):
        place(path, content)
        page = build.SOURCE/build.below(path)
        nb, texts = nbformat.read(page, 4), []
        code = next((cell for cell in nb.cells if cell.cell_type == "code"), None)
        for cell in nb.cells:
            if cell is not code:
                texts.append(f'<a id="cell-id={cell.id}"></a>')  # as the one of the code that is left
            shown = [output.get("data", {}) for output in cell.get("outputs", [])]
            texts += [cell.source] if cell.cell_type == "markdown" else [d[k] for d in shown for k in LINKING if k in d]
        nb.cells = [nbformat.v4.new_markdown_cell("\n\n".join(texts))]
        if code:
            nb.cells.append(nbformat.v4.new_code_cell("0", id=code.id))
        nbformat.write(nb, page)
    return placed


def test_no_link_of_the_site_leads_nowhere(tmp_path, monkeypatch):
    site = tmp_path/"site"
    for name, path in dict(SOURCE=tmp_path/"source", SITE=site, DOCS=tmp_path).items():
        monkeypatch.setattr(build, name, path)
    monkeypatch.setattr(build, "place", only_what_may_link(build.place))
    build.build(run=False, search=False)
    assert (site/"nbs"/"20_losses"/"04_weighted.html").exists() and (site/"api"/"losses.weighted.html").exists()

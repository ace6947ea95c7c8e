"The pages of the gallery, made by docs/gallery.py from executed notebooks."
import re
import sys
from base64 import b64encode
from io import BytesIO

import nbformat
import pytest
from conftest import ROOT
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image

from calibnb.studies import CONTRADICTED, HOLDS
from calibnb.studies.claims import paper_claims

sys.path.insert(0, str(ROOT/"docs"))
import gallery  # noqa: E402

STYLED = """<style>#T_1 td {}</style>
<table id="T_1" style="text-align: right">
<thead>
<tr><th class="blank level0" >&nbsp;</th><th class="col_heading" >ECE %</th></tr>
<tr><th class="index_name level0" >ours: 5 seeds</th><th class="blank col0" >&nbsp;</th></tr>
</thead>
<tbody><tr><th id="T_1_level0_row0" class="row_heading" >&lt;CE&gt;</th>
<td id="T_1_row0" class="d" >4.1 ± 0.2</td></tr></tbody>
</table>
"""
ROW = dict(paper="Wang 2021", place="Fig. 2", panel="", shows="reliability diagrams", kind="figure", name="reliability",
           notebook="calibratability", data="CIFAR-10", command="calibnb run a && calibnb run b", note="five <losses>",
           x="confidence", y="accuracy", methods="CE", paper_data="", network="", epochs="none",
           quick="the first seed", quick_setting="digits: MLP 64, 80 epochs; 5 seeds",
           setting="CIFAR-10: ResNet-32, 200 epochs; 5 seeds", full="", runs=100, gpu_hours=5.)


def drawn(colour, **about):
    out = BytesIO()
    Image.new("RGB", (1500, 300), colour).save(out, "png")
    png = b64encode(out.getvalue()).decode()
    return new_output("display_data", {"image/png": png}, metadata={"image/png": about})


@pytest.fixture
def executed():
    table = new_output("display_data", {"text/html": STYLED}, metadata={"text/html": dict(name="paper")})
    outputs = [drawn("blue", name="reliability"), table, new_output("stream", text="a")]
    return new_notebook(cells=[new_code_cell("draw()", outputs=outputs)])


def test_a_table_of_a_notebook_becomes_plain_html(executed):
    assert gallery._plain_table(STYLED).splitlines() == [
        "Ours: 5 seeds.", "", "<table>", "<thead>", '<tr><th align="left"></th><th align="left">ECE %</th></tr>',
        "</thead>", "<tbody>", '<tr><th align="left">&lt;CE&gt;</th><td align="right">4.1 ±&nbsp;0.2</td></tr>',
        "</tbody>", "</table>"]
    assert list(gallery.named_outputs(executed)) == [("figure", "reliability"), ("table", "paper")]


def test_phrases_become_sentences():
    texts = "the other: ResNet-110", "γ of all.", "g(p) of p", "noisy_digits, mlp", "loss (FL-3 .. CE). two classes"
    assert " ".join(map(gallery._sentences, texts)) == (
        "The other: ResNet-110. γ of all. g(p) of p. noisy_digits, mlp. Loss (FL-3 .. CE). Two classes.")


def test_a_place_of_a_paper_shows_our_figure_once_and_its_command(executed, tmp_path):
    ours, shown = dict(calibratability=gallery.named_outputs(executed)), {}
    assert gallery._place(tmp_path, [ROW, ROW | dict(name="paper", kind="table")], ours, shown)[:5] == [
        "## Fig. 2",
        "*In the paper:* Accuracy against confidence. CE.",
        "**Reliability diagrams.**",
        "*Quick run:* Digits: MLP 64, 80 epochs; 5 seeds; shown: the first seed.",
        "[![reliability diagrams](figures/calibratability-reliability.png)](calibratability.ipynb)"]
    assert (tmp_path/"figures"/"calibratability-reliability.png").exists()
    assert gallery._place(tmp_path, [ROW | dict(place="Fig. 9")], ours, shown)[2:] == [
        "**Reliability diagrams.**", "This is the figure under [Fig. 2](#fig-2).", "Five &#60;losses&#62;.",
        "*Full run:* CIFAR-10: ResNet-32, 200 epochs; 5 seeds (100 trainings, 5 GPU hours). "
        "The command is under [Fig. 2](#fig-2)."]
    assert gallery._full_run(ROW, {})[1] == "```sh\ncalibnb run a &&\ncalibnb run b\n```"
    assert gallery._our_output(tmp_path, ROW | dict(notebook="", note="needs data"), {}) == "*Not drawn: needs data.*"


def test_a_claim_has_a_marker_for_each_study():
    found = dict(data="digits", kind="paper", claim="", notebook="calibratability", verdict=HOLDS)
    second = dict(found, verdict=CONTRADICTED, data="CIFAR-10", notebook="cifar10/evidence")
    *_, table = gallery._claim_table("Wang 2021", {"wang-14": [found, second]})
    row, = [line for line in table.splitlines() if line.startswith("| wang-14 |")]
    assert row.endswith("</details> | yes | [●](calibratability.ipynb) | [○](cifar10/evidence.ipynb) |")
    assert len(table.splitlines()) == 2 + len(paper_claims("Wang 2021"))


def test_the_page_of_a_paper_has_claims_figures_and_printed_numbers(executed, tmp_path):
    nbformat.write(executed, tmp_path/"calibratability.ipynb")
    pages = {page.stem: page.read_text(encoding="utf-8") for page in gallery.write_paper_pages(tmp_path)}
    assert {"wang_2021", "lin_2025", "mukhoti_2020"} < set(pages)
    assert "## Claims" in pages["wang_2021"] and "(figures/calibratability-reliability.png)" in pages["wang_2021"]
    assert "The paper's numbers, 10,000 test samples, 3 trainings:" in pages["lin_2025"]
    assert "4.36" in pages["lin_2025"]  # ECE of CE, Table 1
    assert "not stated" not in re.sub("<details>.*", "", pages["lin_2025"])


def test_the_gallery_shows_the_cover_and_counts_of_each_study(tmp_path):
    question = new_markdown_cell("# Is it red?\n\nText.")
    cells = [question, *(new_code_cell("draw()", outputs=[o]) for o in (drawn("blue"), drawn("red", cover=True)))]
    counts = {"paper: open": 1, "paper: holds": 2, "identity: holds": 3}
    cells += [new_code_cell("n: int = 5\nnames: list[str] = []", metadata=dict(tags=["parameters"])),
              new_code_cell("n = 5\nnames = ['a b']", metadata=dict(tags=["injected-parameters"]))]
    counted = new_notebook(cells=cells, metadata=dict(findings=counts, found=["It is.", "By far."]))
    (tmp_path/"of_hours").mkdir()
    nbformat.write(counted, tmp_path/"red.ipynb")
    nbformat.write(counted, tmp_path/"of_hours"/"red.ipynb")
    nbformat.write(new_notebook(cells=[new_markdown_cell("no title")]), tmp_path/"a.ipynb")
    (tmp_path/"lin_2025.md").write_text("# Lin 2025\n\nFigures.")
    page = gallery.write_gallery(tmp_path, ["red"]).read_text()
    cover = Image.open(tmp_path/"red.png").convert("RGB")
    assert (cover.size, cover.getpixel((5, 5))) == ((1000, 200), (255, 0, 0))
    assert page.split("\n\n")[2:] == [
        "Figure by figure and table by table: [Lin 2025](lin_2025.md).",
        "## [Is it red?](red.ipynb)",
        "It is. By far.",
        "[![red](red.png)](red.ipynb)",
        "Claims of papers: 2 holds, 1 open. Identities: 3 holds.",
        "`calibnb run red -p names '[\"a b\"]'`",
        "## [a](a.ipynb)", "`calibnb run a`",
        "## [Is it red?](of_hours/red.ipynb)",
        "It is. By far.",
        "[![of_hours/red](of_hours/red.png)](of_hours/red.ipynb)",
        "Claims of papers: 2 holds, 1 open. Identities: 3 holds.",
        "`calibnb run red -p names '[\"a b\"]'`\n"]

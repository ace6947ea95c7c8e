"""The explore notebooks: executed, and in JupyterLab in a browser, where a slider moves the figure and the number.

What needs Chromium is skipped where there is none.
"""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request

import numpy as np
import pandas as pd
import pytest
import torch

from calibnb import cli
from calibnb.core import Predictions
from calibnb.core.text import escaped_style
from calibnb.evaluate import evaluate
from calibnb.evaluate.page import html_page
from calibnb.posthoc import TemperatureScaling
from calibnb.studies.paper_tables import Cell, MethodTable, Row, write_method_tables

from conftest import ROOT, patience, wait_for
from explored import EXPLORE, check_pictures

chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(chromium is None, reason="no Chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]
CHANGED = """([src, text]) => document.querySelector('.jp-OutputArea-output img').src != src
    && [...document.querySelectorAll('.widget-html-content')].at(-1).innerText != text"""


def answers(url):
    try:
        return urllib.request.urlopen(url, timeout=patience(2)).status == 200
    except OSError:
        return False


def lives(server, log):
    assert server.poll() is None, log.read_text()[-3000:]
    return True


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    "JupyterLab on a copy of the notebooks; ended by its own process id."
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(ROOT/"nbs", home/"nbs")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    folders = {f"JUPYTER_{name.upper()}_DIR": str(home/name) for name in ("config", "data", "runtime")}
    env = os.environ | folders | dict(CALIBNB_RUNS=str(home/"runs"), HOME=str(home))
    command = [sys.executable, "-m", "jupyter", "lab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
               f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token=",
               "--ServerApp.password=", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
               f"--notebook-dir={home/'nbs'}"]
    with open(home/"lab.log", "w") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: answers(f"{url}/api"), alive=lambda: lives(server, home/"lab.log"))
        yield url
    finally:
        server.terminate()
        try:
            server.wait(patience(30))
        except subprocess.TimeoutExpired:
            server.kill()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with tempfile.TemporaryDirectory() as profile, playwright.sync_playwright() as p:
        options = dict(executable_path=chromium, args=FLAGS, viewport=dict(width=1400, height=1000))
        context = p.chromium.launch_persistent_context(profile, **options, timeout=1000*patience(60))
        context.set_default_timeout(1000*patience(90))
        yield context
        context.close()


RUN = "document.title='it ran'"
HOSTILE = [f"<script>{RUN}</script>", f"[a](javascript:{RUN})", f"<img src=x onerror={RUN}>",
           f"</title><svg onload={RUN}>"]


@pytest.fixture
def pages(forked_kernels, tmp_path, monkeypatch):
    "Write pages of names that hold scripts, and a page with the scripts themselves."
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    draw = torch.Generator().manual_seed(0)
    probs = (2*torch.randn(60, 4, generator=draw)).softmax(1)
    classes = np.array([f"{k} {text}" for k, text in enumerate(HOSTILE)])
    labels = torch.multinomial(probs.sqrt(), 1, generator=draw)[:, 0]
    file = tmp_path/f"<script>{RUN}<{chr(0x2215)}script>[a](javascript:{RUN}).csv"
    pd.DataFrame(probs.numpy(), columns=classes).assign(target=classes[labels]).to_csv(file, index=False)
    title = ["--title", "".join([*HOSTILE, file.name])]
    command = ["audit", str(file), "--probs", "--calibrator", "temperature", "--to", str(tmp_path/"out")]
    assert cli.main([*command, *title]) == 0
    table = pd.DataFrame({HOSTILE[0]: [HOSTILE[1]]}, index=pd.Index([HOSTILE[2]], name=HOSTILE[3]))
    found = evaluate(Predictions.from_probs(probs, labels), calibrators={HOSTILE[0]: TemperatureScaling()}, draws=10)
    found.notes.append(HOSTILE[2])
    shown = {"table": escaped_style(table).to_html(), "evaluation": found._repr_html_(),
             "scripts": "".join(HOSTILE) + f"<a href=\"javascript:{RUN}\">a</a><img src=http://127.0.0.1:9/x.png>"}
    for name, body in shown.items():
        (tmp_path/f"{name}.html").write_text(html_page(f"{name} {HOSTILE[3]}", body))
    rows = [Row(text, {"ece": Cell(ece), HOSTILE[1]: Cell(.5)}) for text, ece in ((HOSTILE[2], .2), (HOSTILE[3], .1))]
    of_methods = MethodTable(HOSTILE[0], ["ece", HOSTILE[1]], rows, HOSTILE)
    write_method_tables([of_methods], tmp_path/"tables.html")
    compared = ["compare", str(file), str(file), "--probs", "--by", "predicted_class", "--least", "5"]
    assert cli.main([*compared, "--html", str(tmp_path/"comparison.html")]) == 2  # 60 samples cannot decide
    return [*sorted((tmp_path/"out").glob("*.html")), *sorted(tmp_path.glob("*.html"))]


def look_at_the_report(page):
    "Hover a bar, switch the bins and the measure, sort the table; at each width nothing is wider than the page."
    page.locator("#diagram .hover").last.hover()
    assert "samples" in page.locator("#bin").inner_text() and "misclassified rows" in page.locator("#bin").inner_text()
    before = page.locator("#diagram").inner_html()
    page.get_by_role("button", name="30 bins").click()
    assert page.locator("#diagram").inner_html() != before
    first = page.locator("#class-0").inner_html()
    page.locator("#class-switches button").last.click()
    assert page.locator("#classes figure").count() == 4 and page.locator("#class-0").inner_html() != first
    page.get_by_role("button", name="ECE", exact=True).click()
    assert page.locator("#dots circle").count() == 2
    for _ in range(2):  # the second click sorts downwards
        page.get_by_role("button", name="NLL", exact=True).last.click()
    values = page.locator("#table tbody td:nth-child(3)").evaluate_all("cells => cells.map(c => +c.dataset.value)")
    assert values == sorted(values, reverse=True)
    for width in 360, 800, 1440:
        page.set_viewport_size(dict(width=width, height=900))
        assert page.evaluate("document.documentElement.scrollWidth") == width


def look_at_the_comparison(page):
    "Hover a bin, switch to curves, and resize: each measure keeps its row, and nothing is wider than the page."
    page.locator("#diagram .hover").last.hover()
    assert page.locator("#bin dt").all_inner_texts() == ["bin", "old", "new"]
    page.get_by_role("button", name="no bins").click()
    assert page.locator("#diagram .curve").count() == 2 and not page.locator("#diagram .hover").count()
    for width in 360, 800, 1440:
        page.set_viewport_size(dict(width=width, height=900))
        assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("#differences .margin").count() == 4 == page.locator("#differences .dot").count()


def look_at_the_tables(page):
    "A click on a heading sorts the table; a narrow page scrolls the table, not itself."
    page.get_by_role("button", name="ECE %", exact=True).click()
    assert page.locator("tbody td:nth-child(2)").all_inner_texts() == ["10.00", "20.00"]
    page.set_viewport_size(dict(width=400, height=900))
    assert page.evaluate("document.documentElement.scrollWidth") == 400


@needs_chromium
def test_scripts_in_names_do_not_run(pages, browser):
    for path in pages:
        page, failed = browser.new_page(), []
        page.on("requestfailed", lambda request: failed.append(request.failure))
        page.goto(path.as_uri())
        page.evaluate("[...document.links].filter(a => a.protocol != 'file:').forEach(a => a.click())")
        if shots := os.environ.get("CALIBNB_SCREENSHOTS"):
            page.screenshot(path=f"{shots}/{path.stem}.png", full_page=True)
        assert page.title() != "it ran" and set(failed) == ({"csp"} if path.stem == "scripts" else set())
        wrong = "main script, svg [href], [onerror], [onload], a[href^=javascript], img:not([src^=data])"
        looks = {"report.html": look_at_the_report, "tables.html": look_at_the_tables,
                 "comparison.html": look_at_the_comparison}
        if path.name in looks:
            looks[path.name](page)
        else:
            wrong += ", main svg"
        assert path.stem == "scripts" or page.locator(wrong).count() == 0
        page.close()


def run_all(page, lab, name):
    page.goto(f"{lab}/lab/tree/explore/{name}.ipynb?reset")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()   # cells run before this are lost
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator("[data-command='runmenu:run-all']").click()


def slider(page, label):
    return page.locator(".widget-slider", has=page.locator(".widget-label", has_text=label)).locator(".noUi-handle")


@needs_chromium
@pytest.mark.parametrize("name, label", [
    ("losses", "FL γ"),
    ("first_five_minutes", "bins"),
])
def test_a_slider_moves_the_figure_and_the_number(lab, browser, name, label, tmp_path):
    "Of two explorers: all are executed below and moved in test_widgets.py, and reach the page in the same way."
    page = browser.new_page()
    try:
        run_all(page, lab, name)
        handle = slider(page, label).first
        handle.wait_for()
        figure, caption = page.locator(".jp-OutputArea-output img").first, page.locator(".widget-html-content").last
        figure.wait_for()
        before = figure.get_attribute("src"), caption.inner_text()
        assert len(before[0]) > 5000 and any(c.isdigit() for c in before[1])
        handle.focus()
        for _ in range(5):
            page.keyboard.press("ArrowLeft")
        page.wait_for_function(CHANGED, arg=list(before))
        page.wait_for_function("document.querySelector('.jp-OutputArea-output img').clientWidth > 400")
        assert not page.locator(".jp-OutputArea-output[data-mime-type*='stderr']").count()
    finally:
        page.screenshot(path=os.environ.get("CALIBNB_SCREENSHOTS", str(tmp_path)) + f"/{name}.png")
        page.close()


@pytest.mark.parametrize("name", sorted(p.stem for p in EXPLORE.glob("*.ipynb")))
def test_pictures_replace_a_front_end(name, tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBNB_RUNS", str(tmp_path/"runs"))
    draw = torch.Generator().manual_seed(0)
    logits = 2*torch.randn(3000, 4, generator=draw)
    target = torch.multinomial(logits.softmax(1), 1, generator=draw)[:, 0]
    check_pictures(name, tmp_path, Predictions(2*logits, target))

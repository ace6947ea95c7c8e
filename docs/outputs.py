"""Outputs of the rooms, as they are stored in the notebooks; `make sync` stores those of the rooms that changed.

A stamp in the notebook's metadata says for which code its outputs were made. Text on stderr, execution counts and names
of temporary files are left out, and pictures are PNG of few colours without metadata, so an unchanged output is an
unchanged file.
"""
import base64
import io
import json
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LARGEST_OUTPUT, LARGEST_ROOM = 30_000, 150_000  # bytes
COLOURS = 48
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"  # shows nothing without a kernel


def code_of(cell):
    return "".join(cell["source"])


def stamp(nb):
    "Return a hash of the code of a notebook, as read by `json`."
    code = "\n".join(code_of(cell) for cell in nb["cells"] if cell["cell_type"] == "code")
    return sha256(code.encode()).hexdigest()[:12]


def is_stale(path):
    "Return True if the outputs of a room are older than its code."
    nb = json.loads(path.read_text(encoding="utf-8"))
    return nb["metadata"].get("calibnb", {}).get("outputs_of") != stamp(nb)


def store(path, outputs):
    "Write {cell id: outputs} into a notebook, and the stamp of its code; return what is too large, or ''."
    nb = json.loads(path.read_text(encoding="utf-8"))
    for cell in nb["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = kept(cell, outputs)
    nb["metadata"].setdefault("calibnb", {})["outputs_of"] = stamp(nb)
    too_large = problem(path, nb)
    if not too_large:
        path.write_text(json.dumps(nb, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    return too_large


def kept(cell, outputs):
    "Return what is stored of the outputs of a cell; nothing of a hidden one."
    hidden = code_of(cell).startswith("#| hide")
    return [] if hidden else [small(output) for output in outputs.get(cell["id"], []) if is_kept(output)]


def differing(path, outputs):
    "Return the stored and the new text of the first cell whose outputs differ from those of the notebook; '' if none."
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            new = shown(kept(cell, outputs))
            if new != shown(cell["outputs"]):
                return f"{path.name}: stored {shown(cell['outputs'])!r}, now {new!r}"
    return ""


def shown(outputs):
    "Return what a reader sees of outputs: texts, and a hash of each picture."
    def text(output):
        data = output.get("data", {"text/plain": output.get("text", "")})
        picture = data.get("image/png")
        return sha256(picture.encode()).hexdigest()[:8] if picture else "".join(data.get("text/plain", ""))
    return "; ".join(map(text, outputs))


def problem(path, nb):
    "Return a sentence on an output that is too large or differs from run to run; '' if there is none."
    cells = [(code_of(cell), json.dumps(cell["outputs"])) for cell in nb["cells"] if cell.get("outputs")]
    for code, text in cells:
        if len(text) > LARGEST_OUTPUT:
            return f"{path.name}: {len(text):,} bytes of output, want at most {LARGEST_OUTPUT:,}, after {code[:60]!r}"
        if found := re.search(rf"0x[0-9a-f]{{6,}}|/(tmp|home|root)/|{re.escape(str(ROOT))}/", text):
            return f"{path.name}: {found[0]!r} differs from machine to machine, after {code[:60]!r}"
    if sum(len(text) for _, text in cells) > LARGEST_ROOM:
        return f"{path.name}: more than {LARGEST_ROOM:,} bytes of output"
    return ""


def is_kept(output):
    if output["output_type"] == "stream":
        return output["name"] == "stdout"
    return bool(output.get("data")) and WIDGET_VIEW not in output["data"]


def small(output):
    "Return an output without its execution count; a picture has few colours, and no text beside it."
    output = json.loads(json.dumps(output))
    if "execution_count" in output:
        output["execution_count"] = None
    data = output.get("data", {})
    if " at 0x" in "".join(data.get("text/plain", [])) and "text/html" in data:
        data.pop("text/plain")
    if "text/html" in data:
        data["text/html"] = with_steady_ids("".join(data["text/html"]))
    if "image/png" in data:
        data.pop("text/plain", None)
        data["image/png"] = with_few_colours(base64.b64decode(data["image/png"]))
    return output


def with_steady_ids(html):
    "Return HTML with a hash of its text in place of the random id that pandas gives a styled table."
    random_id = r"\bT_[0-9a-f]{5}(?![0-9a-f])"
    steady_id = sha256(re.sub(random_id, "T_", html).encode()).hexdigest()[:5]
    return re.sub(random_id, f"T_{steady_id}", html)


def with_few_colours(png):
    "Return a picture as a PNG with a palette, in base64."
    from PIL import Image
    file = io.BytesIO()
    picture = Image.open(io.BytesIO(png)).convert("RGB")
    few = picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    few.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    if any(map(is_stale, (p for p in Path("nbs").rglob("*.ipynb") if p.parts[1][0].isdigit()))):
        sys.exit(subprocess.run([sys.executable, "tests/lessons.py", "--store"]).returncode)

"""Write README's table of evidence into `nbs/index.ipynb`; `make sync` calls this.

Every number comes from the committed tables: ECEs from runs/gallery/cifar10, verdicts from the executed notebooks in
runs/gallery. `python docs/evidence.py` prints the cell.
"""
import json
import sys
from pathlib import Path

from calibnb.metrics.bins import table_norm, width_bins
from calibnb.studies import OPEN
from calibnb.studies.claims import count_sentence, read_verdicts
from calibnb.studies.study_table import read_study_table

ROOT = Path(__file__).parents[1]
NOTEBOOK, CELL = "nbs/index.ipynb", "e71de9ce"
IMAGES, META = "cifar10_cpu", "cifar10_cpu_meta"  # parts of the table: losses, and learned losses
CE, FOCAL, SMOOTHED = ("ce", None), ("focal", 2.), ("label_smoothing", .09)
INVERSE, WEIGHTED, FIXED = ("inverse_focal", 1.), ("bsce_gra", 1.), ("focal", 1.)
LEARNED = ("gamma-sece", .01)  # with its bandwidth
ROWS = [  # claim, paper, part of the table, methods on both sides, their names, claims before and after a temperature
    ("focal loss is better calibrated than cross-entropy", "Mukhoti 2020", IMAGES, CE, FOCAL, "CE", "FL-2",
     "mukhoti-25", "mukhoti-26"),
    ("weighted gradients calibrate best of six losses", "Lin 2025", IMAGES, CE, WEIGHTED, "CE", "BSCE-GRA",
     "lin-01", "lin-02"),
    ("label smoothing calibrates, but not once a temperature is fitted", "Wang 2021", IMAGES, CE, SMOOTHED, "CE", "LS",
     "wang-01", "wang-06"),
    ("inverse focal loss is the better start for a temperature", "Wang 2021", IMAGES, CE, INVERSE, "CE", "IFL-1",
     "", "wang-39"),
    ("a γ that is learned for each sample beats cross-entropy and a fixed γ", "Meta-regularization", META, FIXED,
     LEARNED, "FL-1", "γ-Net", "metareg-07", ""),
]


def mean_eces(rows):
    "Return {(loss, coefficient, calibrator): mean ECE over the seeds, in percent}, and the same with numbers of seeds."
    found = {}
    for about, scored in rows:
        option = about["coefficient"]
        if about["loss"] == LEARNED[0]:
            option = about["learned"]["outer_args"]["bandwidth"]
        ece = 100*table_norm(width_bins(scored.conf.double(), scored.pred == scored.target, 15)).item()
        found.setdefault((about["loss"], option, about["calibrator"]), []).append(ece)
    return {key: sum(each)/len(each) for key, each in found.items()}, {key: len(each) for key, each in found.items()}


def largest_gain(eces):
    "Return by how much the best loss has a lower ECE than cross-entropy, after one temperature."
    return eces[(*CE, "temperature")] - min(ece for key, ece in eces.items() if key[-1] == "temperature")


def verdict(id, verdicts):
    "Return the verdict of a claim on CIFAR-10, of its first version; a claim that waits for runs is open."
    return next((v["verdict"] for v in verdicts.get(id, []) if v["data"] == "CIFAR-10"), OPEN).removesuffix(" here")


def line(row, eces, verdicts):
    claim, paper, part, old, new, old_name, new_name, before, after = row
    def pair(calibrator):
        a, b = (eces[part][(*method, calibrator)] for method in (old, new))
        return f"{a:.1f} → {b:.1f} %"
    said = verdict(before or after, verdicts)
    if before and after:
        said = f"as trained: {said}; after: {verdict(after, verdicts)}"
    return f"| {claim} ({paper}) | {old_name} → {new_name} | {pair('')} | {pair('temperature')} | {said} |"


def cell(root=ROOT):
    "Return the source of the cell."
    gallery = root/"runs"/"gallery"
    stored, verdicts = read_study_table(gallery/"cifar10"), read_verdicts(gallery)
    (of_images, seeds), (of_learned, _) = (mean_eces(stored.samples[part]) for part in (IMAGES, META))
    eces, n = {IMAGES: of_images, META: of_learned}, seeds[(*CE, "")]
    hits = [(scored.pred == scored.target).double().mean().item() for about, scored in stored.samples[IMAGES]
            if (about["loss"], about["calibrator"]) == ("ce", "")]
    error = 100 - 100*sum(hits)/len(hits)
    lines = [
        "**Does it help?** What the papers claim, and what we find on CIFAR-10 with a small network (0.8 million "
        f"weights, 10 epochs, {error:.0f} % error; ECE with 15 bins, means over {n} seeds, 10 for γ-Net):", "",
        "| claim | | ECE as trained | after one temperature | verdict here |", "|---|---|---|---|---|",
        *(line(row, eces, verdicts) for row in ROWS), "",
        "After one temperature, fitted on validation samples, no loss has a lower ECE than cross-entropy by more than "
        f"{largest_gain(of_images):.1f} points. "
        f"{count_sentence(verdicts)} [The evidence](runs/gallery/cifar10/evidence.ipynb) has seeds, intervals and "
        "code; the [gallery](runs/gallery/README.md) has every study."]
    return "\n".join(lines)


def write(root):
    path = root/NOTEBOOK
    notebook = json.loads(path.read_text(encoding="utf-8"))
    found = next(c for c in notebook["cells"] if c["id"] == CELL)
    found["source"] = cell(root).splitlines(keepends=True)
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        write(Path.cwd())
    else:
        print(cell())

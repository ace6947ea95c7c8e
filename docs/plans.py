"""Write trainings, hours and settings of each command in `nbs/places.csv` to `nbs/plans.csv`; `make plans` calls this.

The file also has a row for the quick run of each notebook, `calibnb run NAME`, with the parameters of `make gallery`.
The trainings of a sweep are read from its file. The cells of a notebook are executed up to the cell that plans the
trainings.
"""
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

import pandas as pd

import calibnb.runs
from calibnb.cli.command import parser
from calibnb.cli.run import parameters_of
from calibnb.notebooks.execute import Notebook
from calibnb.notebooks.parameters import read_notebook
from calibnb.runs.plans import estimate_gpu_seconds
from calibnb.sweep.spec import expand
from calibnb.sweep.typed import typed_spec

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT/"nbs"/"plans.csv"

DATA_NAMES = dict(
    cifar10="CIFAR-10", cifar100="CIFAR-100", svhn="SVHN", tiny_imagenet="Tiny-ImageNet", sst="SST",
    imagefolder="ImageNet", noisy_digits="noisy digits",
    ambiguous_digits="ambiguous digits", gaussians="five Gaussians") | {"20newsgroups": "20 Newsgroups"}
MODEL_NAMES = dict(
    resnet18="ResNet-18", resnet32="ResNet-32", resnet50="ResNet-50", resnet110="ResNet-110", vgg16="VGG-16",
    wide_resnet="Wide-ResNet-26-10", densenet121="DenseNet-121", text_cnn="1-D CNN", tree_lstm="Tree-LSTM",
    vit_b_16="ViT-B/16", torchvision_resnet50="ResNet-50")


def gallery_parameters():
    "Return the words `-p NAME.PARAMETER VALUE` of GALLERY in the Makefile."
    text = (ROOT/"Makefile").read_text().replace("\\\n", " ")
    return shlex.split(re.search(r"^GALLERY := (.*)", text, re.MULTILINE)[1])


def jobs(part, gallery=()):
    "Return the RunConfigs of a command, or its notebooks as (path, parameters); add parameters of the gallery."
    args = parser().parse_args([*shlex.split(part)[1:], *gallery])
    given = dict(args.parameters)
    if hasattr(args, "what"):
        return [job.config for job in expand(typed_spec(args.what, given, args.grid))]
    every = {path.stem for path in (ROOT/"nbs"/"experiments").glob("*.ipynb")}
    return [(notebook.path, notebook.plan(parameters_of(notebook.path.stem, given, every)))
            for notebook in map(Notebook, args.experiments)]


class Planned(Exception):
    "Raised when a notebook reaches its plan; the argument is the list of RunConfigs."


def planned(configs, *_, **__):
    raise Planned(list(configs))


def cells_after_checks(path):
    "Return the code cells after the checks cell, as text; `Notebook.plan` has run the parameters and the checks."
    cells = read_notebook(path)["cells"]
    checks, = (i for i, cell in enumerate(cells) if "checks" in cell["metadata"].get("tags", []))
    return ["".join(cell["source"]) for cell in cells[checks + 1:] if cell["cell_type"] == "code"]


def run_until_plan(job):
    "Execute a notebook up to the cell that plans its trainings; return its RunConfigs and variables."
    path, settings = job
    names = settings | dict(settings=settings)
    with tempfile.TemporaryDirectory() as folder, patch.object(calibnb.runs, "plan_table", planned):
        with patch.dict(os.environ, CALIBNB_RUNS=folder):
            try:
                for cell in cells_after_checks(path):
                    exec(cell, names)
            except Planned as plan:
                return plan.args[0], names
    raise ValueError(f"{path}: has a parameter dry_run, but calls no `plan_table`")


def trainings(job):
    "Return the RunConfigs of a job; an empty list for a notebook without trainings."
    if not isinstance(job, tuple):
        return [job]
    return run_until_plan(job)[0] if "dry_run" in job[1] else []


def listed(items, word="and"):
    "Join texts: 'a, b and c', without repetitions."
    *first, last = dict.fromkeys(items)
    return f"{', '.join(first)} {word} {last}" if first else last


def network(config):
    "Name the network of a training: 'ResNet-50', 'MLP 128-128'."
    if config.model == "mlp":
        return "MLP " + "-".join(map(str, config.model_args["hidden"]))
    return MODEL_NAMES[config.model]


def training_samples(configs):
    "Return the sizes of the training set if the configurations set them: ' (150 and 700 training samples)'."
    for option, unit in dict(n_train="training samples", train_per_class="training samples a class").items():
        sizes = sorted({config.data_args[option] for config in configs if config.data_args.get(option)})
        if sizes:
            return f" ({listed([f'{n:,}' for n in sizes])} {unit})"
    return ""


def setting(configs):
    "Describe data, networks and epochs of trainings: 'CIFAR-10 and CIFAR-100: ResNet-32, 200 epochs'."
    by_data = {}
    for config in configs:
        name = config.data.partition(":")[0]
        by_data.setdefault(DATA_NAMES.get(name, name), []).append(config)
    groups = {}  # networks and epochs -> data
    for data, of_data in by_data.items():
        epochs = listed([str(n) for n in sorted({config.recipe.epochs for config in of_data})], "or")
        key = f"{listed(map(network, of_data))}, {epochs} epochs{training_samples(of_data)}"
        groups.setdefault(key, []).append(data)
    return "; ".join(f"{listed(data)}: {key}" for key, data in groups.items())


estimates = {}  # what the time of a training depends on -> its seconds


def gpu_seconds(config):
    "Estimate the seconds of a training, once for all losses and seeds."
    recipe, scope = config.recipe, config.meta and config.meta.scope
    sizes = config.data, config.data_args, config.model, config.model_args, recipe.epochs, recipe.batch_size, scope
    key = repr(sizes)
    if key not in estimates:
        estimates[key] = estimate_gpu_seconds(config)
    return estimates[key]


def plan(command, gallery=()):
    "Return the row of a command; `gallery` has the parameters of the gallery, for a quick run."
    configs = [config for part in command.split(" && ") for job in jobs(part, gallery) for config in trainings(job)]
    seconds = [gpu_seconds(config) for config in configs]
    hours = "" if None in seconds else f"{sum(seconds)/3600:.1f}"
    seeds = len({config.seed for config in configs})
    return dict(command=command, runs=len(configs), gpu_hours=hours, seeds=seeds, setting=setting(configs))


def main(file=FILE):
    places = pd.read_csv(ROOT/"nbs"/"places.csv", keep_default_na=False)
    quick = [f"calibnb run {notebook}" for notebook in places.notebook if notebook not in ("", "report")]
    os.chdir(ROOT)
    gallery = gallery_parameters()
    rows = [plan(command, gallery if command in quick else ())
            for command in dict.fromkeys([*places.command, *quick]) if command]
    pd.DataFrame(rows).to_csv(file, index=False)
    for row in rows:
        print(f"{row['runs']} trainings, {row['gpu_hours'] or '?'} hours: {row['command']}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Compare the papers' numbers, figures and settings with a folder of facts about the papers; `--write` writes them.

    python docs/facts.py FOLDER            # print each difference; exit 1 if there is one
    python docs/facts.py FOLDER --write    # write nbs/papers.csv, nbs/tables.csv and the panels of nbs/places.csv

The folder holds `tables.csv` (printed numbers), `figures.csv` (panels of figures) and `settings.csv` (settings of
training and of measuring). The plans of all commands of `nbs/places.csv` with `quick=False` are compared with the
settings: recipes, coefficients and repetitions, and the bins and temperatures of the notebooks (`docs/measuring.py`).
"""
import argparse
import csv
import inspect
import io
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAPERS = ("Mukhoti 2020", "loss study", "Wang 2021", "Lin 2025", "meta-regularization")  # the order of our pages

NUMBER_COLUMNS = ("paper", "place", "data", "model", "method", "coefficient", "metric", "value", "sd", "mark", "n_test",
                  "runs", "note")
TABLE_COLUMNS = ("paper", "place", "settings", "measures", "numbers", "printed", "missing")
PANEL_COLUMNS = ("x", "y", "methods", "paper_data", "network", "epochs")
FACT_COLUMNS = dict(zip(PANEL_COLUMNS, ("x", "y", "methods", "data", "network", "epochs")))


def read(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def to_text(rows, columns):
    "Return rows as the text of a CSV file."
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


# ---- printed numbers

OUR_METHODS = {  # (paper, table) -> method in the facts -> name of the weight in our studies
    ("Lin 2025", "Section 4.3"): {"FL": "focal", "DFL": "dual focal", "gBS": "Brier"}}

N_TEST = {  # test samples, where the paper states them; Tiny-ImageNet: 50 images of each of 200 classes
    "Mukhoti 2020": {"CIFAR-10": 10_000, "CIFAR-100": 10_000, "Tiny-ImageNet": 10_000, "SST": 1_821},
    "Lin 2025": {"CIFAR-10": 10_000, "CIFAR-100": 10_000, "Tiny-ImageNet": 10_000}}

CLASSES = {"CIFAR-10": 10, "CIFAR-100": 100, "Tiny-ImageNet": 200, "SST": 2}

REWORDED = {  # part of a note in the facts -> our words
    "column 'ACE'; the text names Adaptive ECE, its definition is in a missing appendix":
        "the column is named ACE, the text names adaptive ECE",
    "column 'ACE' = Adaptive ECE by the text": "the column is named ACE, the text names adaptive ECE",
    "printed 'CE (TS)'; how T was fitted is not stated":
        "printed as CE (TS); the paper does not state how T was fitted",
    "printed 'Focal', gamma 1": "printed as Focal; γ is 1",
    "printed 'FL_gamma'": "printed as FL_γ",
    "as printed, 1.085 above the ECE of the same row": "1.085 above the ECE of the same row",
    "taken over from the cited paper; network not stated":
        "copied from the cited paper, the network is not stated",
    "two rows of the same name; which variant each is, is not stated":
        "two rows have the same name, the variants are not stated",
    "printed 'Meta-Regularization (Ours)'; Table 1 rounded to two digits":
        "printed as Meta-Regularization (Ours); Table 1, rounded to two digits",
    "prose; \"average\" gain of FLγ-SECE; the baseline is not named; CE-DECE gives 4.079 from Table 1, CE-SECE 4.262: "
    "neither is 4.198": "the text does not name the baseline; Table 1 gives 4.079 for CE-DECE and 4.262 for CE-SECE",
    "prose; CE-DECE as baseline gives": "the text does not name the baseline; Table 1 gives, for CE-DECE,",
    " from Table 1": "",
    "prose (\"roughly\"); extra parameters in training; data set not stated":
        "about; additional parameters in training, the data set is not stated",
    "runs from Section 5, not from the caption; not said whether mean": "the number of runs is from Section 5",
    "the caption names u_FL twice, the second must be u_DFL": "the caption names u_FL twice, the second must be u_DFL",
    "runs from Section 5": "the number of runs is from Section 5",
    "the number of runs is from Section 5;": "the number of runs is from Section 5,",
    "far below every other loss: Brier training failed": "training failed",
    "loss (Section 14: BSCE-GRA) and norm not stated in the table; runs and TS not stated":
        "the loss is from Section 14, the norm is not stated; Table 1 has 1.59 for a pair that is not stated",
    "model from the link vit-base-patch16-224; unit (per cent) not printed; runs, gamma and TS not stated":
        "the network is vit-base-patch16-224; unit and coefficients are not stated",
    "unit not printed; runs and gamma not stated": "unit and coefficients are not stated",
    "the number in brackets; that it is after TS is our reading, the paper does not say":
        "printed in brackets; that it is after TS is our reading",
    "prose; correlation of u with c(x); coefficients by grid search, values not stated":
        "coefficients by grid search, the values are not stated",
    "prose; default setting (350 epochs)": "350 epochs",
    "prose; runs not stated": "",
    "the same pair 14.58/2.99 is printed for CIFAR-100 WRN and for Tiny-ImageNet; Table 4 has 14.57/3.22 and "
    "13.50/4.92, so the Tiny-ImageNet cell is the doubtful one":
        "the pair 14.58/2.99 is printed for CIFAR-100 with Wide-ResNet and for Tiny-ImageNet; the adaptive ECE of "
        "Table 4 (14.57/3.22, 13.50/4.92) says that the second is a slip",
    "header row; chosen by ECE on the test data": "chosen by test ECE",
    "header row; the same as in Table 1": "the same as in Table 1",
    "the filled/hollow distinction of the triangle (t-test at 0.05) is lost in the text; our t against CE from the "
    "printed means and sds, n = 5 each:":
        "the text lost whether the triangle is filled (t-test at .05); t from the printed means and sds of 5 runs:",
}


def reworded(note):
    for theirs, ours in REWORDED.items():
        note = note.replace(theirs, ours)
    return note


def our_remark(fact):
    "Return our addition to the note of a number."
    if fact["paper"] != "Mukhoti 2020":
        return ""
    classes = CLASSES[fact["data"]]
    smoothing = f"off-target smoothing: {.05*classes/(classes - 1):.4f} of the uniform kind, for {classes} classes"
    return {"LS-0.05": smoothing, "MMCE": "weight 2"}.get(fact["method"], "")


def measure_name(fact):
    "Return the name of the measure with its calibrator; each T is a temperature of temperature scaling."
    in_method = fact["paper"] == "meta-regularization"  # this paper has CE + TS as a method
    plain = in_method or not fact["calibrator"] or fact["metric"] in ("T", "coefficient")
    return fact["metric"] if plain else f"{fact['metric']} + {fact['calibrator']}"


def method_name(fact):
    named = OUR_METHODS.get((fact["paper"], fact["table"]), {}).get(fact["method"], fact["method"])
    in_method = fact["paper"] == "meta-regularization" and fact["calibrator"]
    return f"{named} + {fact['calibrator']}" if in_method else named


def number_rows(facts):
    "Return the rows of nbs/papers.csv."
    coefficients = {(f["paper"], f["table"], f["data"], f["method"]): f["value"]
                    for f in facts if f["metric"] == "coefficient"}
    rows = []
    for fact in facts:
        note = "; ".join(filter(None, [our_remark(fact), reworded(fact["note"])]))
        rows.append(dict(
            paper=fact["paper"], place=fact["table"], data=fact["data"] or "–", model=fact["model"] or "–",
            method=method_name(fact), metric=measure_name(fact), value=fact["value"], sd=fact["sd"], mark=fact["mark"],
            coefficient=coefficients.get((fact["paper"], fact["table"], fact["data"], fact["method"]), ""),
            n_test=N_TEST.get(fact["paper"], {}).get(fact["data"], ""), runs=fact["runs"], note=note.strip("; ")))
    order = sorted(dict.fromkeys((f["paper"], f["table"]) for f in facts), key=place_order)
    return sorted(rows, key=lambda row: order.index((row["paper"], row["place"])))


def place_order(place):
    "Return the sort key of a table: paper, then tables before sections, each by its number."
    paper, table = place
    kind, _, number = table.rpartition(" ")
    appendix = number[:1].isalpha()
    return PAPERS.index(paper), kind != "Table", appendix, [float(n) for n in number.lstrip("C.").split(".")]


# ---- tables

NOT_IN_THE_TEXT = [  # tables that a paper mentions, without known numbers
    dict(paper="Wang 2021", place="Appendix Table A", settings=0, measures=0, numbers=0, printed="",
         missing="all numbers: the appendix is not in our text of the paper")]


def table_rows(numbers):
    "Return the rows of nbs/tables.csv: counts of the numbers of each table."
    def kinds(rows, *columns):
        return len({tuple(row[c] for c in columns) for row in rows})
    places = dict.fromkeys((row["paper"], row["place"]) for row in numbers)
    rows = []
    for paper, place in places:
        found = [row for row in numbers if (row["paper"], row["place"]) == (paper, place)]
        rows.append(dict(paper=paper, place=place, settings=kinds(found, "data", "model"),
                         measures=kinds(found, "method", "metric"), numbers=len(found), printed=len(found), missing=""))
    rows += NOT_IN_THE_TEXT
    return sorted(rows, key=lambda row: PAPERS.index(row["paper"]))


# ---- figures

def panel_key(row, place="place"):
    return row["paper"], row[place], row["panel"]


EXPLAINED_PANELS = {  # (paper, place, panel), column -> our words; why: the words of the facts stand in the paper
    (("Mukhoti 2020", "Fig. 1", "a"), "y"):
        "NLL of training and of test samples, entropy of the prediction (a and b together)",
}


def panel_facts(key, facts):
    "Return the columns of a panel: the facts, or our own words from `EXPLAINED_PANELS`."
    fact = facts.get(key)
    return {column: EXPLAINED_PANELS.get((key, column), fact[name]) if fact else ""
            for column, name in FACT_COLUMNS.items()}


def with_panels(places, figures):
    "Return the rows of nbs/places.csv with the facts of their panels."
    facts = {panel_key(figure, "figure"): figure for figure in figures}
    def panel(row):
        return panel_facts(panel_key(row), facts)
    return [row | panel(row) for row in places]


# ---- differences

def differing(name, key, ours, facts):
    "Yield a line for each row that is missing, unknown or different; the key columns identify a row."
    def by_key(rows):
        return {tuple(row[c] for c in key): {c: str(v) for c, v in row.items()} for row in rows}
    ours, facts = by_key(ours), by_key(facts)
    for k in facts.keys() - ours.keys():
        yield f"{name}: missing: {', '.join(filter(None, k))}"
    for k in ours.keys() - facts.keys():
        yield f"{name}: not in the facts: {', '.join(filter(None, k))}"
    for k in ours.keys() & facts.keys():
        for column, value in facts[k].items():
            if ours[k].get(column) != value:
                yield f"{name}: {', '.join(filter(None, k))}: {column} is {ours[k].get(column)!r}, facts: {value!r}"


def differences_of_numbers(root, folder):
    ours, facts = read(root/"nbs"/"papers.csv"), number_rows(read(folder/"tables.csv"))
    yield from differing("papers.csv", ("paper", "place", "data", "model", "method", "metric"), ours, facts)
    if len(ours) != len(facts):
        yield f"papers.csv: {len(ours)} rows, facts: {len(facts)}"
    yield from differing("tables.csv", ("paper", "place"), read(root/"nbs"/"tables.csv"), table_rows(facts))


def differences_of_figures(root, folder):
    places, figures = read(root/"nbs"/"places.csv"), read(folder/"figures.csv")
    facts = {panel_key(figure, "figure"): figure for figure in figures}
    drawn = {panel_key(row) for row in places}
    for key in facts:
        if key not in drawn:
            yield f"places.csv: missing: {', '.join(filter(None, key))}"
    printed = {(paper, figure) for paper, figure, _ in facts}
    for row in places:
        key, name = panel_key(row), ", ".join(filter(None, panel_key(row)))
        if key not in facts and (row["panel"] or key[:2] in printed or "Fig." in row["place"]):
            yield f"places.csv: not in the facts: {name}"
        for column, want in panel_facts(key, facts).items():
            if row[column] != want:
                yield f"places.csv: {name}: {column} is {row[column]!r}, facts: {want!r}"


# ---- settings of training

DATA = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "tiny_imagenet": "Tiny-ImageNet", "svhn": "SVHN", "sst": "SST",
        "20newsgroups": "20 Newsgroups", "imagefolder:/data/imagenet": "ImageNet", "gaussians": "five 2-D Gaussians"}
NETWORKS = {"resnet18": "ResNet-18", "resnet32": "ResNet-32", "resnet50": "ResNet-50", "resnet110": "ResNet-110",
            "vgg16": "VGG16", "wide_resnet": "Wide-ResNet", "densenet121": "DenseNet", "vit_b_16": "ViT-B/16",
            "torchvision_resnet50": "ResNet-50", "text_cnn": "1-D CNN", "tree_lstm": "Tree-LSTM",
            "mlp": "two-layer CNN"}  # the inputs have two numbers, so our two layers are not convolutions

# paper -> loss and option in our plans, and how the facts write its values; the values that `loss_coefficients` names
# must be among those of the plans
COEFFICIENTS = {
    "Mukhoti 2020": [("focal", "gamma", "FL"), ("label_smoothing", "eps", "LS"), ("mmce", "lam", "MMCE weight")],
    "Lin 2025": [("dual_focal", "gamma", "DFL gamma"), ("bsce_gra", "gamma", "exponent")],
    "Wang 2021": [("label_smoothing", "eps", "LS"), ("lp_norm", "alpha", "L1"), ("focal", "gamma", "FL")],
    "meta-regularization": [("focal", "gamma", "Focal gamma"), ("label_smoothing", "eps", "LS"),
                            ("mixup", "", "mixup alpha"), ("sece", "bandwidth", "h"), ("γ-Net", "tau", "tau"),
                            ("γ-Net", "gamma0", "gamma starts at")],
}
GRIDS = {  # loss -> option, and its values in the column `grid`
    "label_smoothing": ("eps", r"(?:LS|eps) ([^;]*)"),
    "lp_norm": ("alpha", r"(?:L1|alpha) ([^;(]*)"),
    "focal": ("gamma", r"(?:focal|gamma) ([^;]*)"),
}


def network_name(name):
    "Return the name without its depth in brackets: 'Wide-ResNet' for 'Wide-ResNet (26-10)' and 'Wide-ResNet-26-10'."
    name = name.split(" (")[0].replace("ResNet18", "ResNet-18").replace("ResNet50", "ResNet-50")
    known = [ours for ours in NETWORKS.values() if name.startswith(ours)]
    return known[0] if known else name.replace("8-layer ", "")


def numbers_of(text):
    "Return the numbers of a list, '0.01, 0.02, ..., 0.1' has ten numbers."
    parts = [part.strip() for part in text.split(",")]
    if "..." in parts:
        i = parts.index("...")
        first, second, last = (float(parts[j]) for j in (0, i - 1, i + 1))
        return {round(first + k*(second - first), 6) for k in range(round((last - first)/(second - first)) + 1)}
    found = [re.match(r"[\d.]*\d", part) for part in parts]
    return {float(m[0]) for m in found if m}


def first_number(text):
    found = re.match(r"[\d.]*\d", text)
    return float(found[0]) if found else None


def stated(setting):
    "Return the fields of a recipe that a row of settings states: field -> value."
    found = {}
    for field, name in dict(epochs="epochs", lr="lr", lr_factor="lr_factor", batch_size="batch",
                            weight_decay="weight_decay", momentum="momentum").items():
        if (number := first_number(setting[name])) is not None:
            found[field] = number
    if setting["optimiser"] in ("SGD", "Adam", "AdaGrad"):
        found["optimizer"] = setting["optimiser"].lower()
    if drops := {int(n) for n in re.findall(r"\b\d+\b", setting["milestones"].split("(")[0])}:
        found["milestones"] = drops
    if "crop" in setting["augmentation"]:
        found["augment"] = {"crop", "flip"}
    if "cosine" in setting["lr"]:
        found["schedule"] = "cosine"
    if "best validation" in setting["selection"]:
        found["keep"] = "val_error"
    return found


def plan_commands(root):
    "Return paper -> commands: the commands of nbs/places.csv, and the sweeps of the paper."
    prefixes = dict(zip(("mukhoti", "loss_study", "wang", "lin", "meta"), PAPERS))
    commands = {paper: dict.fromkeys(row["command"] for row in read(root/"nbs"/"places.csv")
                                     if row["paper"] == paper and row["command"]) for paper in PAPERS}
    for path in sorted((root/"sweeps").glob("*.yaml")):
        paper = next((paper for prefix, paper in prefixes.items() if path.name.startswith(prefix)), None)
        if paper and not path.stem.endswith("_quick"):
            commands[paper][f"calibnb sweep sweeps/{path.name}"] = None
    return commands


def planned_trainings(root):
    """Return the RunConfigs of all plans with `quick=False`, and the notebooks that measure these trainings.

    Both are by (paper, experiment, data, network). A notebook is a path and its variables; a sweep is measured by the
    notebook `report`."""
    import plans
    os.chdir(root)
    report, = plans.jobs("calibnb run report")
    of_sweeps = report[0], plans.run_until_plan(report)[1]
    by_part, found, notebooks = {}, {}, {}  # cifar10_gpu and _meta are our own, and a report trains nothing
    for paper, commands in plan_commands(root).items():
        for part in dict.fromkeys(part for command in commands for part in command.split(" && ")):
            if part not in by_part:
                by_part[part] = list(planned_by(plans, part, of_sweeps))
            for config, notebook in by_part[part]:
                if config.data in DATA and "run report" not in part and not config.experiment.startswith("cifar10_gpu"):
                    key = paper, config.experiment, DATA[config.data], NETWORKS[config.model]
                    found.setdefault(key, {}).setdefault(config.model_dump_json(), config)
                    notebooks[key] = notebook
    return {key: list(configs.values()) for key, configs in found.items()}, notebooks


def planned_by(plans, part, of_sweeps):
    "Yield each RunConfig of a command with the notebook that measures it."
    for job in plans.jobs(part):
        if not isinstance(job, tuple):
            yield job, of_sweeps
        elif "dry_run" in job[1]:
            configs, names = plans.run_until_plan(job)
            yield from ((config, (job[0], names)) for config in configs)


def value_of(config, loss, option):
    "Return the coefficient of a RunConfig, if it has this loss."
    from calibnb.losses.modules import loss_options
    from calibnb.meta.learned import GammaNet
    if loss == "mixup":
        return config.recipe.mixup or None
    if loss == "sece":
        given = config.meta and config.meta.outer == "sece"
        return config.meta.outer_args.get("bandwidth", loss_options("sece")["bandwidth"]) if given else None
    if loss == "γ-Net":
        given = config.meta and config.meta.learn == "gamma"
        default = inspect.signature(GammaNet).parameters[option].default
        return config.meta.learn_args.get(option, default) if given else None
    if config.loss != loss or config.meta is not None:
        return None
    return config.loss_args.get(option, loss_options(loss).get(option))


def of_setting(setting, trainings):
    "Return the plans that belong to a row of settings: experiment -> RunConfigs."
    networks = {network_name(name) for name in re.split(r"[;,/] ", setting["network"])}
    data = {name.strip() for name in re.split(r"[,(]", setting["data"])}
    return {key: configs for key, configs in trainings.items()
            if key[0] == setting["paper"] and key[2] in data and key[3] in networks}


def differences_of_recipes(setting, key, configs):
    want, name = stated(setting), ", ".join(key) + f" ({setting['experiment']})"
    for field, value in want.items():
        for ours in {str(getattr(c.recipe, field)): getattr(c.recipe, field) for c in configs}.values():
            same = set(ours) >= value if isinstance(value, set) else ours == value
            if not same:
                yield f"settings: {name}: {field} is {ours}, facts: {value}"
    if "8:1:1" in setting["validation"] and any(
            c.data_args.get("val") != .1 or c.data_args.get("meta_val") != .1 for c in configs):
        yield f"settings: {name}: not split 8:1:1"
    if setting["pretrained"].startswith("yes") and not all(c.model_args.get("weights") for c in configs):
        yield f"settings: {name}: random weights, facts: pretrained"
    seeds = re.match(r"(\d+) \(seeds ([\d, ]+);", setting["repetitions"])
    if seeds and {c.recipe.seed for c in configs} < {int(n) for n in seeds[2].split(",")}:
        yield f"settings: {name}: seeds {sorted({c.recipe.seed for c in configs})}, facts: {seeds[2]}"


def differences_of_coefficients(setting, name, configs):
    for loss, option, label in COEFFICIENTS.get(setting["paper"], []):
        found = re.search(rf"\b{label} ([\d., ]*\d)", setting["loss_coefficients"])
        ours = {value_of(c, loss, option) for c in configs} - {None}
        if found and not numbers_of(found[1]) <= ours:
            yield f"settings: {name}: {label} is {sorted(ours)}, facts: {sorted(numbers_of(found[1]))}"


def differences_of_grids(setting, key, configs):
    "Compare the grids of coefficients in [Wang 2021] with the grids of our studies."
    of_figure = key[1] == "loss_comparison" if "1(d)" in setting["experiment"] else key[1] == "calibratability"
    short = key[2] in ("CIFAR-100", "20 Newsgroups") and "up to 0.01" in setting["grid"]
    for loss, (option, pattern) in GRIDS.items():
        found = re.search(pattern, setting["grid"])
        ours = {value_of(c, loss, option) for c in configs} - {None}
        if not found or not ours or not of_figure:
            continue
        facts = {n for n in numbers_of(found[1]) if not (short and loss == "lp_norm" and n > .01)}
        if not facts:  # values that only the figure shows
            continue
        if ours != facts if key[1] == "calibratability" else not facts <= ours:
            yield f"settings: {', '.join(key)} ({setting['experiment']}): grid of {loss} is {sorted(ours)}, " \
                  f"facts: {sorted(facts)}"


EXPLAINED_MEASURES = {  # (paper, study, parameter) -> why it is not as in the settings
    ("Lin 2025", "", "T of 0"): "the logits are divided by T, so that the grid begins at its second number, 0.1",
    ("Wang 2021", "loss_comparison", "T"): "Fig. 1 shows the ECE as trained; Tables 1 and 2 have T and HB",
    ("Wang 2021", "loss_comparison", "HB"): "the same",
    ("Wang 2021", "report", "T"): "of the trainings of a sweep it lists T by two criteria that serve all papers; "
                                  "calibratability measures Table 2",
    ("Wang 2021", "report", "HB"): "it applies none; calibratability measures Table 2",
}


class Explained(set):
    "The keys of `EXPLAINED_MEASURES` that explained a difference."
    def __call__(self, paper, study, parameter):
        keys = {(paper, study, parameter), (paper, "", parameter)} & EXPLAINED_MEASURES.keys()
        self |= keys
        return bool(keys)


def stated_bins(text):
    return {int(n) for n in re.findall(r"\d+", re.sub(r"Figs?\. \d+:?", "", text))}


def differences_of_bins(setting, made):
    "Compare the numbers of bins; if the facts list several, our notebook must use each of them."
    want = stated_bins(setting["bins"])
    if want and not (want == made.bins if len(want) == 1 else want <= made.bins):
        yield f"bins of {sorted(made.bins)}, facts: {sorted(want)}"


def differences_of_temperatures(setting, made, explained):
    "Compare the candidate temperatures, the criterion, and the bins of histogram binning."
    from calibnb.posthoc.temperature import temperature_lists
    text, paper, study = setting["temperature"], setting["paper"], made.study
    ours = [c for c in made.calibrators if type(c).__name__ == "TemperatureScaling"]
    in_list = [c for c in ours if c.search or c.criterion == "ece"]  # our own temperatures minimise the NLL
    tried = {c._search(): {round(t, 6) for t in temperature_lists[c._search()].tolist()} for c in in_list}
    if stated := re.search(r"(?:grid|pool) ([\d., ]*\d)", text):
        want = numbers_of(stated[1])
        if 0 in want and explained(paper, study, "T of 0"):
            want -= {0}
        if not tried and not explained(paper, study, "T"):
            yield f"no temperatures are tried, facts: {stated[0]}"
        for search, values in tried.items():
            if values != want and not explained(paper, study, "T"):
                yield (f"the {len(values)} temperatures of {search!r} from {min(values):g} to {max(values):g}, "
                       f"facts: {len(want)} from {min(want):g} to {max(want):g}")
    if re.search(r"on (?:validation )?ECE", text):
        if not any(c.criterion == "ece" for c in ours):
            yield f"T by {sorted({c.criterion for c in ours})}, facts: by the ECE"
        if by := {c.criterion for c in in_list} - {"ece"}:
            yield f"a list of temperatures by {sorted(by)}, facts: by the ECE"
    if "one decimal" in text:
        for search, values in tried.items():
            if any(round(value, 1) != value for value in values):
                yield f"temperatures of {search!r} have more than the one decimal of the facts"
    if stated := re.search(r"HB (\d+) equal-width bins on the top-1", text):
        want = int(stated[1]), "width", "top"
        found = {(c.n_bins, c.scheme, c.mode) for c in made.calibrators if type(c).__name__ == "HistogramBinning"}
        if found != {want} and not (not found and explained(paper, study, "HB")):
            yield f"HB is {sorted(found)}, facts: {want}"
    if "in every epoch" in text and study == "calibratability":
        every = {r.every for name, r in made.recorders.items() if name.startswith("optimal_ece")}
        if every != {1}:
            yield f"T is searched on the test data every {sorted(every)} epochs, facts: every epoch"


def differences_of_repetitions(setting, key, configs, made):
    "Compare the number of seeds of each training, or the repetition in the figure."
    if drawn := re.match(r"the (\d+)th run", setting["repetitions"]):
        seeds, ours = sorted({c.recipe.seed for c in configs}), made.names.get("drawn")
        if ours not in seeds or seeds.index(ours) + 1 != int(drawn[1]):
            yield f"seed {ours} of {seeds} is drawn, facts: {drawn[0]}"
    if not (stated := re.match(r"\d+\b", setting["repetitions"])):
        return
    seeds = {}
    for config in configs:
        same = config.model_copy(update=dict(recipe=config.recipe.model_copy(update=dict(seed=0)), recorders=()))
        seeds.setdefault(same.model_dump_json(), set()).add(config.recipe.seed)
    if (ours := {len(each) for each in seeds.values()}) != {int(stated[0])}:
        yield f"{sorted(ours)} repetitions, facts: {stated[0]}"


class Measured:
    "The calibrators, numbers of bins and recorders with which the notebook of a study measures trainings."
    read = {}  # path and data -> calibrators, numbers of bins

    def __init__(self, notebook, configs):
        import measuring
        path, self.names = notebook
        self.study, self.recorders = Path(path).stem, measuring.recorders(configs)
        at = path, id(self.names)
        if at not in self.read:
            self.read[at] = (measuring.calibrators(Path(path), self.names),
                             measuring.numbers_of_bins(Path(path), self.names))
        self.calibrators, bins = self.read[at]
        with_bins = [*self.calibrators, *self.recorders.values()]
        self.bins = bins | {thing.n_bins for thing in with_bins if hasattr(thing, "n_bins")}


def differences_of_measures(setting, key, configs, made, explained):
    if made.study == "report" and re.match("(Appendix )?Fig", setting["experiment"]):
        return  # `report` has tables only
    name = ", ".join(key) + f" ({setting['experiment']})"
    for line in (*differences_of_bins(setting, made), *differences_of_temperatures(setting, made, explained),
                 *differences_of_repetitions(setting, key, configs, made)):
        yield f"settings: {name}: {line}"


def differences_of_settings(root, folder):
    (trainings, notebooks), settings = planned_trainings(root), read(folder/"settings.csv")
    print(f"{sum(map(len, trainings.values())):,} trainings of {len(trainings)} plans, {len(settings)} settings")
    measured = {key: Measured(notebooks[key], configs) for key, configs in trainings.items()}
    explained = Explained()
    for setting in settings:
        plans = of_setting(setting, trainings)
        silent = "not stated" in setting["data"] or setting["network"] in ("none", "not stated")
        if not plans and not silent:
            name = ", ".join(setting[c] for c in ("paper", "experiment", "data", "network"))
            yield f"settings: no plan: {name}"
        for key, configs in plans.items():
            yield from differences_of_recipes(setting, key, configs)
            yield from differences_of_measures(setting, key, configs, measured[key], explained)
            if setting["paper"] == "Wang 2021":
                yield from differences_of_grids(setting, key, configs)
        for data, network in dict.fromkeys(key[2:] for key in plans):
            every = [c for key, configs in plans.items() if key[2:] == (data, network) for c in configs]
            name = f"{setting['paper']}, {setting['experiment']}, {data}, {network}"
            yield from differences_of_coefficients(setting, name, every)
    for key in EXPLAINED_MEASURES.keys() - explained:
        yield f"settings: {', '.join(filter(None, key))}: explained, and does not differ"
    print(f"{len(explained)} kinds of differences explained")


PARTS = dict(numbers=differences_of_numbers, figures=differences_of_figures, settings=differences_of_settings)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="facts about the papers: tables.csv, figures.csv, settings.csv")
    parser.add_argument("--write", action="store_true", help="write the CSV files instead of comparing them")
    parser.add_argument("--only", choices=PARTS, help="compare one part; the plans of settings take a minute or two")
    parser.add_argument("--root", type=Path, default=ROOT, help="a clone of calibnb (default: this one)")
    args = parser.parse_args()
    nbs = args.root/"nbs"
    if args.write:
        numbers = number_rows(read(args.folder/"tables.csv"))
        (nbs/"papers.csv").write_text(to_text(numbers, NUMBER_COLUMNS), encoding="utf-8")
        (nbs/"tables.csv").write_text(to_text(table_rows(numbers), TABLE_COLUMNS), encoding="utf-8")
        places = with_panels(read(nbs/"places.csv"), read(args.folder/"figures.csv"))
        (nbs/"places.csv").write_text(to_text(places, list(places[0])), encoding="utf-8")
    parts = [args.only] if args.only else PARTS
    found = [line for part in parts for line in PARTS[part](args.root.resolve(), args.folder.resolve())]
    print(*found, f"{len(found)} differences", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()

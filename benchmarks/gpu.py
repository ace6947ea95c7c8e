"""`make gpu`: what calibnb does on this machine's GPU, in under ten minutes, without a network.

    python benchmarks/gpu.py                   every section, written to benchmarks/RESULTS-gpu.md
    python benchmarks/gpu.py losses streaming  only these, printed
    python benchmarks/gpu.py --dry             every line of it on a CPU, in tiny sizes: no number means anything

A section works in a process of its own, for as long as it may: what fails or hangs is told on the page, and the next
one begins. The page is written anew after each of them.
"""
import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from datetime import date
from importlib import import_module
from pathlib import Path

import torch
from gpu_rows import HEADER, Bench, failed, one_line, rows_of
from harness import cpu_name

from calibnb.processes.pool import core_count, in_processes
from calibnb.sweep.engines import _PRELOAD

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("RESULTS-gpu.md")
IN_ALL = 570  # seconds that all sections together may take
PATIENCE = 4  # times as long a dry pass may take: on a CPU that is busy


@dataclass
class Section:
    "A table of the page."
    title: str
    place: str    # module:function that yields its pieces
    at_most: int  # seconds
    rows: list = field(default_factory=list)
    error: str = "not reached"  # why it is not whole; empty: it is
    seconds: float = 0.


def all_sections():
    "Name -> section, in the order of the page. Images come last and may take what time the others have left."
    return dict(
        tests=Section("Tests: the numbers of this device beside the CPU's", "gpu_tests:tests_section", 70),
        losses=Section("Losses, forward and backward", "gpu_pieces:loss_section", 120),
        metrics=Section("Metrics", "gpu_pieces:metric_section", 60),
        streaming=Section("Streaming metrics", "gpu_pieces:streaming_section", 10),
        meta=Section("Losses that are learned", "gpu_trainings:meta_section", 40),
        digits=Section("The CPU's result", "gpu_trainings:digits_section", 40),
        many=Section("Many runs on one GPU", "gpu_trainings:many_section", 60),
        resume=Section("Killed and resumed", "gpu_trainings:resume_section", 25),
        images=Section("Images a second", "gpu_trainings:image_section", IN_ALL))


def function_at(place):
    module, name = place.split(":")
    return getattr(import_module(module), name)


def work(place, bench, send):
    "Run a section in its process, and send each row as soon as it is there."
    warnings.simplefilter("ignore")
    if bench.dry:
        torch.compiler.set_stance("force_eager")  # compiling takes longer than all the rest
    for row in rows_of(function_at(place), bench):
        send(row)


def run_section(section, bench, at_most):
    "Fill in a section; its rows are printed as they come."
    def on_row(row):
        section.rows.append(row)
        print(row, flush=True)
    start = time.perf_counter()
    outcome, = in_processes(work, [(section.place, bench)], 1, on_message=on_row, timeout=at_most, preload=_PRELOAD)
    section.seconds = time.perf_counter() - start
    section.error = "" if outcome.error is None else failed("", outcome.error).error


def run_all(sections, bench, machine, page):
    "One section after the other, within the time for all; the page is written after each."
    times = PATIENCE if bench.dry else 1
    end = time.monotonic() + times*IN_ALL
    for i, (name, section) in enumerate(sections.items(), 1):
        left = end - time.monotonic()
        if left < 5:
            section.error = f"no time was left of the {IN_ALL} s for all sections"
            continue
        at_most = min(left, times*section.at_most)
        print(f"\n{i}/{len(sections)} {name}: {section.title} (at most {at_most:.0f} s)", flush=True)
        run_section(section, bench, at_most)
        if section.error:
            print(f"NOT WHOLE: {section.error}", flush=True)
        page.write_text(page_text(sections, machine, bench.dry))


def shortcomings(sections):
    "What is missing or failed, a line each."
    for name, section in sections.items():
        if section.error:
            yield f"section `{name}` is not whole, {len(section.rows)} rows are there: {one_line(section.error)}"
        for row in section.rows:
            if row.error:
                yield f"`{name}`: {row.what} failed: {one_line(row.error)}"


HOW = ("Times are medians of calls one behind the other, their launches included. MB are what a call takes of the "
       "device's memory at its peak. Ratios are those of the row to what stands beside it.")
DRY = "**A dry pass on a CPU, in tiny sizes: no number on this page means anything.**"


def page_text(sections, machine, dry):
    tables = "\n".join(map(table_text, sections.values()))
    head = ["# Results of `make gpu`", *([DRY] if dry else []), machine, missing_text(sections), targets_text(sections)]
    return "\n\n".join([*head, HOW, tables])


def missing_text(sections):
    bad = list(shortcomings(sections))
    return "\n".join(["**Missing or failed:**", "", *(f"- {line}" for line in bad)] if bad else ["Nothing is missing."])


def targets_text(sections):
    rows = [row for section in sections.values() for row in section.rows]
    met, missed = ([row.what for row in rows if row.met is was_met] for was_met in (True, False))
    return f"**Targets:** {len(met)} met, {len(missed)} NOT MET{': ' if missed else ''}{'; '.join(missed)}."


def table_text(section):
    about = f"{function_at(section.place).__doc__} {section.seconds:.0f} s."
    return "\n".join([f"## {section.title}", "", about, "", HEADER, *map(str, section.rows), ""])


def machine_text(device):
    versions = f"{cpu_name()}, {core_count()} cores, Python {platform.python_version()}, torch {torch.__version__}"
    if device.type != "cuda":
        return f"{date.today()}, {versions}"
    card = torch.cuda.get_device_properties(device)
    name = f"{card.name}, {card.total_memory/2**30:.0f} GB, compute capability {card.major}.{card.minor}"
    cuda = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, driver {driver_version()}"
    return f"{date.today()}, {name}, {cuda}, {versions}"


def driver_version():
    "As the kernel's module says, or nvidia-smi."
    module = Path("/proc/driver/nvidia/version")
    if module.exists() and (found := re.search(r"Kernel Module\D*([\d.]+)", module.read_text())):
        return found[1]
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(asked, capture_output=True, text=True, timeout=10).stdout.split("\n")[0] or "unknown"
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def choose_one_gpu(dry):
    "All that follows sees one GPU, or none; the first of those that are visible."
    listed = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if dry else listed.split(",")[0]


def no_cuda():
    "Why there is nothing to measure."
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return f"torch {torch.__version__} finds no CUDA device (it wants a driver for CUDA {torch.version.cuda})"


def options(argv):
    parser = argparse.ArgumentParser("benchmarks/gpu.py", description=__doc__.split("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(all_sections()))
    parser.add_argument("--dry", action="store_true", help="every line of it on a CPU, in tiny sizes")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.sections if name not in all_sections()]:
        parser.error(f"no section {', '.join(unknown)}; there are {', '.join(all_sections())}")
    return args


def main(argv=None):
    args = options(argv)
    choose_one_gpu(args.dry)
    if not (args.dry or torch.cuda.is_available()):
        print(f"{no_cuda()}, so nothing is measured; `make gpu DRY=1` (benchmarks/gpu.py --dry) tries it on a CPU")
        return 1
    sections = all_sections()
    sections = {name: sections[name] for name in args.sections or sections}
    whole = not (args.dry or args.sections)
    page = PAGE if whole else Path(tempfile.mkdtemp(prefix="calibnb-gpu-"))/PAGE.name
    bench = Bench(torch.device("cpu" if args.dry else "cuda:0"), args.dry)
    machine = machine_text(bench.device)
    print(DRY if args.dry else f"{len(sections)} sections in {IN_ALL/60:.1f} minutes at most", flush=True)
    print(f"on: {machine}\nthe page: {page}, written anew after each section", flush=True)
    run_all(sections, bench, machine, page)
    bad = list(shortcomings(sections))
    print(f"\nthe page: {page}", *(bad or ["nothing is missing, nothing failed"]), sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

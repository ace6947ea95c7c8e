"""Crafted inputs of audit, apply, predict and sweep: each ends with 0, or with 2 and one line, and no input changes.

    python tests/fuzz.py 3000      so many of them, and a table of what came out
    python tests/fuzz.py 1 1234    the one with this number
"""
import io
import os
import signal
import struct
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections import Counter
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image
from safetensors.numpy import load_file, save_file

from calibnb import cli
from calibnb.models import make_model
from calibnb.posthoc import make_calibrator

AUDIT = ["--no-report", "--calibrator", "temperature"]
FIT = torch.Generator().manual_seed(0)
LOGITS = {K: 3*torch.randn(60, K, generator=FIT) for K in (1, 2, 3)}
TARGET = {K: (torch.arange(60) % max(2, K)) for K in LOGITS}


class Case(NamedTuple):
    "A command line in a folder."
    kind: str
    argv: list
    valid: bool|None  # None: nobody knows beforehand
    out: str = ""     # the only file that may appear


# what is done to the arrays of a file: name -> (function of the arrays and a generator, does it leave them valid?)

def with_values(name, values):
    def change(arrays, rng):
        found = np.array(arrays[name])
        found = found.astype(np.float64) if name == "target" else found
        found[tuple(rng.integers(0, n) for n in found.shape)] = rng.choice(values)
        return arrays | {name: found}
    return change


def with_type(name, dtype):
    return lambda arrays, rng: arrays | {name: np.asarray(arrays[name]).astype(dtype)}


def with_shape(name, change):
    return lambda arrays, rng: arrays | {name: change(np.asarray(arrays[name]))}


def wrap_label(arrays, rng):
    labels = arrays["target"].astype(np.uint64)
    labels[3] = [2**63, 2**64 - 1, 2**31][int(rng.integers(3))]
    return arrays | {"target": labels}


ARRAYS = [
    (with_values("scores", [np.nan, np.inf]), False),
    (with_values("scores", [1e308, -1e308, 1e300]), None),
    (with_values("target", [-1, 99, .5, 1e300, -1e300, 2.**60]), False),
    (with_values("target", [np.nan, np.inf]), False),
    (wrap_label, False),
    (lambda arrays, rng: arrays | {"target": arrays["target"] + rng.choice([1, -1, 2, 1000])}, False),
    (lambda arrays, rng: arrays | {"target": 2*arrays["target"] - 1}, False),
    (lambda arrays, rng: {"scores": arrays["scores"]}, False),
    (lambda arrays, rng: {"target": arrays["target"]}, False),
    (lambda arrays, rng: arrays | {"Target": arrays["target"]}, False),
    (lambda arrays, rng: arrays | {"x"*int(rng.integers(1, 60_000)): np.zeros(3)}, None),
    (with_type("target", "float64"), None), (with_type("target", "int8"), None), (with_type("target", "bool"), None),
    (with_type("target", "U5"), None), (with_type("target", "complex64"), False), (with_type("target", "S3"), False),
    (with_type("target", "datetime64[s]"), False), (with_type("target", "f2"), None),
    (with_type("scores", "float16"), None), (with_type("scores", "longdouble"), None),
    (with_type("scores", ">f8"), None), (with_type("scores", "int32"), None),
    (with_type("scores", "complex128"), False),
    (with_type("scores", "U20"), False), (with_type("scores", "bool"), None), (with_type("scores", object), False),
    (with_type("scores", "timedelta64[s]"), False), (with_type("scores", "uint64"), None),
    (with_shape("scores", lambda x: x[:-1]), False), (with_shape("target", lambda x: x[:, None]), None),
    (with_shape("scores", lambda x: x[:0]), False), (with_shape("scores", lambda x: x[:, :0]), False),
    (with_shape("scores", lambda x: x[0]), False), (with_shape("scores", lambda x: x[None]), None),
    (with_shape("scores", lambda x: x[0, 0]), False), (with_shape("scores", lambda x: x.T), False),
    (with_shape("scores", lambda x: x[:2]), False), (with_shape("target", lambda x: x[0]), False),
    (with_shape("scores", lambda x: np.stack([x, x], 2)), False),
]


def write_npz(path, arrays, rng, scores):
    named = {scores if k == "scores" else k: v for k, v in arrays.items()}
    save = np.savez if rng.random() < .5 else np.savez_compressed
    save(path, **named)


def write_pt(path, arrays, rng, scores):
    torch.save({scores if k == "scores" else k: torch.as_tensor(np.asarray(v)) for k, v in arrays.items()}, path)


def write_safetensors(path, arrays, rng, scores):
    save_file({scores if k == "scores" else k: np.ascontiguousarray(v) for k, v in arrays.items()}, path)


def write_csv(path, arrays, rng, scores):
    table = np.asarray(arrays.get("scores", np.zeros((60, 0))))
    table = table.reshape(len(table), -1) if table.ndim else table.reshape(1, 1)
    names = ["p"] if table.shape[1] == 1 else [f"c{k}" for k in range(table.shape[1])]
    columns = [*table.T]
    for name, values in arrays.items():
        if name != "scores":
            names.append(name)
            columns.append(np.atleast_1d(np.asarray(values)).ravel())
    rows = [",".join(str(column[i]) if i < len(column) else "" for column in columns) for i in range(len(table))]
    Path(path).write_text("\n".join([",".join(names), *rows]) + "\n")


WRITERS = {"npz": write_npz, "pt": write_pt, "safetensors": write_safetensors, "csv": write_csv}


# what is done to the bytes of a file

def damage(data, rng):
    "The same bytes, cut, flipped, repeated, or with others among them."
    data, n = bytearray(data), len(data)
    match rng.integers(7):
        case 0: return bytes(data[:int(rng.integers(n))])
        case 1: return bytes(data[int(rng.integers(n)):])
        case 2:
            for place in rng.integers(0, n, int(rng.integers(1, 20))): data[place] ^= 1 << int(rng.integers(8))
        case 3: data[int(rng.integers(n)):] = rng.bytes(int(rng.integers(1, 200)))
        case 4:
            place = int(rng.integers(n))
            data[place:place] = rng.bytes(int(rng.integers(1, 50)))
        case 5: data[int(rng.integers(n)):] = data[:int(rng.integers(n))]
        case 6: data = bytes(n)
    return bytes(data)


TEXT = [  # what is done to a table of text, and does it stay valid?
    (lambda lines, rng: [lines[0], "", *lines[1:]], True),
    (lambda lines, rng: ["", "", *lines], True),
    (lambda lines, rng: ["\ufeff" + lines[0], *lines[1:]], True),
    (lambda lines, rng: [line + "\r" for line in lines], True),
    (lambda lines, rng: [lines[0].replace("c1", "c0").replace("p,", "target,"), *lines[1:]], False),
    (lambda lines, rng: [lines[0] + ", target", *(f"{line},0" for line in lines[1:])], False),
    (lambda lines, rng: [line.replace(",", ";") for line in lines], False),
    (lambda lines, rng: [line.replace(".", ",") for line in lines], False),
    (lambda lines, rng: lines[1:], False),
    (lambda lines, rng: lines[:1], False),
    (lambda lines, rng: [lines[0], *(f"{line},7" for line in lines[1:])], None),
    (lambda lines, rng: [*lines[:5], lines[5] + ",1,2,3,4", *lines[6:]], False),
    (lambda lines, rng: [*lines[:5], '"' + lines[5], *lines[6:]], False),
    (lambda lines, rng: [*lines[:5], "\0" + lines[5], *lines[6:]], None),
    (lambda lines, rng: [*lines[:5], lines[5].rpartition(",")[0] + "," + "x"*100_000, *lines[6:]], False),
    (lambda lines, rng: [*lines[:5], lines[5].rpartition(",")[0] + ",NA", *lines[6:]], False),
    (lambda lines, rng: [*lines[:5], "1e999" + lines[5][lines[5].index(","):], *lines[6:]], False),
    (lambda lines, rng: [lines[0] + ",id", *(f"{line},{i}" for i, line in enumerate(lines[1:]))], True),
    (lambda lines, rng: ["\x1b[31mc0" + lines[0][2:], *lines[1:]], None),
    (lambda lines, rng: ["a\u202eb" + lines[0][2:], *lines[1:]], None),
    (lambda lines, rng: [lines[0].upper(), *lines[1:]], None),
]


def pt_of_another_kind(folder, rng):
    "Tensors that are none, or none that arithmetic takes."
    z, y = LOGITS[3], TARGET[3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.quantize_per_tensor(z, .1, 0, torch.qint8)
    held, valid = [
        (dict(logits=z.to("meta"), target=y), False), (dict(logits=z, target=y.to("meta")), False),
        (dict(logits=quantised, target=y), False), (dict(logits=z.to(torch.float8_e4m3fn), target=y), False),
        (dict(logits=z.to_sparse(), target=y), False), (dict(logits=z.to(torch.complex64), target=y), False),
        (dict(logits=torch.zeros(1).expand(10**12, 3), target=y), False), (dict(logits=[[1., 2.]]*60, target=y), None),
        (dict(logits=dict(a=z), target=y), False), (dict(logits=z, target=y.to(torch.uint64)), True),
        (dict(logits=torch.nn.Parameter(z), target=y), True), (dict(logits=z.bfloat16(), target=y.double()), True),
        (dict(logits=z, target=y.bfloat16()), None), ([z, y], False), ((z, y), False), (z, False), ("text", False),
        (None, False), ({1: z, 2: y}, False), (dict(logits=z.T.contiguous().T, target=y), True), ({}, False),
        (dict(logits=z, target=y, extra=dict(a=[1, None, "x"])), True),
    ][int(rng.integers(22))]
    torch.save(held, folder/"a.pt")
    return "a.pt", valid


def bomb_of_zeros(path, entry):
    "An archive of some kilobytes that says it unpacks into terabytes, or whose array says so."
    header = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118)
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000), }".ljust(117) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{entry}.npy", header + text + bytes(10**6))
        archive.writestr("target.npy", b"")


def twice_in_npz(path):
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, values in ("logits", LOGITS[3]), ("logits", -LOGITS[3]), ("target", TARGET[3]):
            held = io.BytesIO()
            np.save(held, values.numpy())
            archive.writestr(f"{name}.npy", held.getvalue())


# files of predictions

def scores_of(K, kind):
    if kind == "logits": return LOGITS[K]
    return LOGITS[K].sigmoid() if K == 1 else LOGITS[K].softmax(1)


def predictions(folder, rng):
    "A file of predictions: its name, what it holds, and whether it is right."
    K, kind = int(rng.choice([1, 2, 3])), str(rng.choice(["logits", "probs"]))
    arrays = dict(scores=scores_of(K, kind).double().numpy(), target=TARGET[K].numpy())
    way = str(rng.choice(["whole", "array", "array", "bytes", "text", "pt", "zip"]))
    if way == "pt": return *pt_of_another_kind(folder, rng), "logits"
    if way == "zip":
        if rng.random() < .5: bomb_of_zeros(folder/"a.npz", kind)
        else: twice_in_npz(folder/"a.npz")
        return "a.npz", False, kind
    suffix = "csv" if way == "text" else str(rng.choice(list(WRITERS)))
    name, valid = f"a.{suffix}", True
    if way == "array":
        change, valid = ARRAYS[int(rng.integers(len(ARRAYS)))]
        arrays = change(arrays, rng)
        if suffix == "csv": valid = None
    try: WRITERS[suffix](folder/name, arrays, rng, kind)
    except Exception:  # which this format cannot hold
        write_npz(folder/"a.npz", arrays, rng, kind)
        name = "a.npz"
    if way == "bytes": (folder/name).write_bytes(damage((folder/name).read_bytes(), rng))
    if way == "text":
        change, valid = TEXT[int(rng.integers(len(TEXT)))]
        lines = change((folder/name).read_text().splitlines(), rng)
        (folder/name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    if way == "bytes" or K == 1 and way == "array": valid = None
    return name, valid, kind


def audit_case(folder, rng):
    name, valid, kind = predictions(folder, rng)
    more = []
    if rng.random() < .3:
        more, kept = [
            (["--bins", "0"], False), (["--bins", "20"], True), (["--seed", "-1"], False), (["--eps", "2"], False),
            (["--val", "absent.npz"], False), (["--val", ""], False), (["--target", name], None),
            (["--title", "\x1b[1m"], True),
            (["--val", name], False), (["--pos-label", "x"*100_000], None), (["--metric", "ks_erro"], False),
            (["--title", "a\udcff\n"], True), (["--plugin", "absent.py"], False), (["--shifted", name], False),
        ][int(rng.integers(14))]
        valid = kept if kept in (False, None) else valid
    return Case("audit", ["audit", name, f"--{kind}", *AUDIT, *more], valid)


def named_case(folder, rng):
    "A right file under a name that is hard to print."
    name = str(rng.choice(["a b.npz", "a\nb.npz", "\udcff.npz", "ü.npz", "[a](javascript:x).npz", "\x1b[31m.npz",
                           "<b>.npz", "-.npz", "x"*200 + ".npz", "npz:a.npz"]))
    whole = rng.random() < .5
    write_npz(folder/name, dict(scores=LOGITS[3].numpy(), target=TARGET[3].numpy() + (not whole)), rng, "logits")
    return Case("name", ["audit", "--logits", *AUDIT, "--", name], whole)


def save_calibrator(path, rng, K):
    name = str(rng.choice(["temperature", "vector", "isotonic", "beta", "histogram", "platt"]))
    make_calibrator(name).fit(LOGITS[K], TARGET[K]).save(path)


def apply_case(folder, rng):
    name, valid, kind = predictions(folder, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_calibrator(folder/"c.safetensors", rng, int(rng.choice([2, 3])))
    out = "o." + str(rng.choice(["npz", "npy", "csv", "pt", "safetensors", "xlsx"]))
    return Case("apply", ["apply", "c.safetensors", name, f"--{kind}", "--out", out],
                False if out.endswith("xlsx") else None, out)


def calibrator_case(folder, rng):
    "A calibrator whose bytes, tensors or header are others."
    K, path = int(rng.choice([2, 3])), folder/"c.safetensors"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_calibrator(path, rng, K)
    valid = None
    match rng.integers(4):
        case 0: path.write_bytes(damage(path.read_bytes(), rng))
        case 1: valid = True
        case _: change_tensors(path, rng)
    np.savez(folder/"a.npz", logits=LOGITS[K].numpy())
    return Case("calibrator", ["apply", "c.safetensors", "a.npz", "--logits", "--out", "o.npz"], valid, "o.npz")


def change_tensors(path, rng):
    from safetensors import safe_open
    with safe_open(path, "np") as file: head = dict(file.metadata())
    held = dict(load_file(path))
    if held and rng.random() < .6:
        name = str(rng.choice(sorted(held)))
        changes = [lambda x: x*np.nan, lambda x: x.reshape(-1)[:0], lambda x: x.reshape(-1)[:1], lambda x: x*1e308,
                   None,
                   lambda x: np.zeros(3), lambda x: np.nan_to_num(x).astype(np.int64), lambda x: x[None], lambda x: -x]
        change = changes[int(rng.integers(len(changes)))]
        if change is None: del held[name]
        else:
            with np.errstate(all="ignore"): held[name] = np.ascontiguousarray(change(np.asarray(held[name])))
    else:
        key = str(rng.choice(sorted(head)))
        text = head[key]
        head[key] = str(rng.choice([text.replace("3", "100000").replace("2", "0"), "["*100_000, "{}", "", "null",
                                    text.replace("1", "NaN"), text[:len(text)//2], text + "x", text.replace('"', "'")]))
    save_file(held, path, metadata=head)


# networks and images

class Gives(torch.nn.Module):
    "A program that gives something else than logits."
    def __init__(self, what:int):
        super().__init__()
        self.what = what
    def forward(self, x):
        z = x.flatten(1)[:, :2]
        assert self.what != 1, "want three\nchannels"
        if self.what == 2: return z[:, 0]
        if self.what == 3: return z*float("nan")
        if self.what == 4: return z.long()
        if self.what == 5: return z[None]
        if self.what == 6: return z[:, :1].repeat(1, 7)
        if self.what == 7: return z[:0]
        if self.what == 8: return z/0
        return z.view(-1, 3)[:, :2] if self.what == 9 else z


class Tuple(torch.nn.Module):
    def forward(self, x): return x.flatten(1)[:, :2], x


def save_network(path, rng):
    "A network in a file, what it needs on the command line, and whether it is right."
    mlp = ["--model", "mlp", "--option", "hidden", "[4]"]
    net = make_model("mlp", 2, (3, 4, 4), hidden=[4]).eval()
    match rng.integers(5):
        case 0:
            what = int(rng.integers(0, 11))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                torch.jit.save(torch.jit.script(Tuple() if what == 10 else Gives(what)), path)
            return [], what == 0 or (None if what in (4, 6, 7, 9) else False)
        case 1:
            torch.save(net.state_dict(), path)
            path.write_bytes(damage(path.read_bytes(), rng))
            return mlp, None
        case 2:
            held = {k: [v.to("meta"), v[:0], v.to_sparse(), v.to(torch.float8_e4m3fn), v.half(), v*float("nan"),
                        v[None],
                        v.to(torch.complex64)][int(rng.integers(8))] for k, v in net.state_dict().items()}
            torch.save(held, path)
            return mlp, None
        case 3:
            held = [{}, [], {"a": 1}, {"a": net.state_dict()}, "x", {1: torch.zeros(1)}][int(rng.integers(6))]
            torch.save(held, path)
            return mlp, False
    torch.save(net.state_dict(), path)
    return mlp, True


def png_bomb(path, side=30_000):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def save_images(folder, rng):
    "A folder of images; is it right?"
    for label in "ab":
        (folder/label).mkdir(parents=True)
        for i in range(3): Image.new("RGB", (4, 4), (50*i, 9, int(rng.integers(256)))).save(folder/label/f"{i}.png")
    target = folder/"b"/"1.png"
    match rng.integers(8):
        case 0: png_bomb(target)
        case 1: target.write_bytes(damage(target.read_bytes(), rng))
        case 2: target.write_text("text")
        case 3: Image.new("RGB", (5, 4)).save(target)
        case 4: (folder/"b"/"0.png").write_bytes(b"")
        case _: return True
    return None


def predict_case(folder, rng):
    path = folder/("n." + str(rng.choice(["pt", "pth"])))
    more, valid = save_network(path, rng)
    images = save_images(folder/"images", rng)
    scale, kept = ["--mean", ".5", "--std", ".5"], True
    if rng.random() < .4:
        scale, kept = [
            ([], False), (["--mean", "127", "--std", "64"], False), (["--mean", ".5", "--std", "0"], False),
            ([*scale, "--size", "0"], False), ([*scale, "--size", "1000000"], False), ([*scale, "--size", "-3"], False),
            ([*scale, "--split", "val"], False), (["--mean", "nan", "--std", ".5"], False),
            ([*scale, "--size", "4"], None),
            (["--mean", ".5", ".5", "--std", ".5", ".5"], False), ([*scale, "--seed", "-1"], False),
        ][int(rng.integers(11))]
    valid = None if valid and (images is None or kept is None) else valid
    return Case("predict", ["predict", path.name, "images", *more, *scale, "--out", "p.npz"],
                False if kept is False else valid, "p.npz")


# sweeps

GOOD = ["preset: quick\ngrid: {seed: '0:2'}\n", "notebook: toy_gaussian\ngrid: {seed: [0, 1]}\n",
        "preset: quick\nbase:\n  recipe.lr: .1\ncases: [{loss: ce}, {loss: focal, loss_args.gamma: 2}]\n"]
SPECS = ["["*100_000, "{a: "*50_000, "a: &a [*a]", "&a [*a, *a]", "base: {loss: ce}\nbase: {loss: brier}",
         "%YAML 9.9\n---\n",
         "grid: {seed: !!int x}", "about: !!timestamp 2001-99-99", "? [a]\n: b",
         "? {a: b}\n: c",
         "base: {seed: " + "1"*5000 + "}", "base: {seed: .nan}", "base: {recipe.lr: .inf}",
         "about: " + "x"*10**6 + "\nz: 1",
         "x"*200_000 + ": 1", "grid: {loss: [" + "x"*100_000 + "]}", "!!binary x", "base: {\"\\0\": 1}",
         "base: {a.b.c.d.e: 1}",
         "cases: [{seed: 1, seed: 2}]", "base: {..: 1}", "base: {'': 1}", "\ud800",
         "grid: {'': [1]}", "notebook: " + "../"*500 + "etc", "notebook: \"a\\0b\"",
         "preset: quick\nnotebook: " + "x"*300,
         "base: {loss: {a: " + "["*300 + "]"*300 + "}}", "base: {model: \"\\e[31m\"}", "base: {data: 'npz:'}",
         "base: {data: 'npz:absent.npz'}", "base: {data: 'imagefolder:.'}", "base: {data: corrupted:}",
         "base: {recorders: 3}"]


NOISE = [*"{}[]:,'\"&*!|>%@`-? \n\t#\0\x1b\u2028xé~"]


def sweep_case(folder, rng):
    name, valid = "s." + str(rng.choice(["yaml", "yml", "json"])), None
    match rng.integers(4):
        case 0: text, valid = str(rng.choice(GOOD)), True
        case 1: text, valid = SPECS[int(rng.integers(len(SPECS)))], False
        case 2: text = damage(str(rng.choice(GOOD)).encode(), rng)
        case 3:
            letters = [*str(rng.choice(GOOD))]
            for _ in range(int(rng.integers(1, 4))):

                               letters[int(rng.integers(len(letters)))] = str(rng.choice(NOISE))
            text = "".join(letters)
    (folder/name).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return Case("sweep", ["sweep", name, "--dry-run"], valid)


CASES = [audit_case]*4 + [apply_case]*3 + [calibrator_case]*2 + [predict_case]*2 + [sweep_case]*3 + [named_case]


def contents(folder):
    return {os.fsencode(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextmanager
def as_a_shell(folder, data):
    "A command's place, environment, streams and warnings."
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    variables = dict(CALIBNB_RUNS=str(folder/"runs"), CALIBNB_DATA=str(data), CALIBNB_PLUGINS="")
    before = Path.cwd()
    os.chdir(folder)
    with patch.dict(os.environ, variables), redirect_stdout(out), redirect_stderr(err):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            for kind in DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning:
                warnings.simplefilter("ignore", kind)
            try: yield out, err
            finally: os.chdir(before)


def text_of(stream):
    stream.flush()
    return stream.buffer.getvalue().decode()


def faults(case, code, out, err, before, after):
    "What is wrong with how a command ended; nothing if all is right."
    wanted = {True: [0], False: [2], None: [0, 2]}[case.valid]
    if code not in wanted: yield f"ended with {code}, want {wanted}"
    line = err.removesuffix("\n")
    plain = line.startswith("calibnb: ") and line.isprintable() and len(line) < 1200
    if code == 2 and not plain: yield "not one plain line"
    if code == 2 and out: yield "output before the error"
    if code == 0 and err: yield "something on stderr"
    changed = [name for name in before if after.get(name) != before[name]]
    if changed: yield f"changed {changed}"
    new = after.keys() - before.keys()
    if new != ({case.out.encode()} if code == 0 and case.out else set()): yield f"left {new}"


def run_case(seed, data):
    "The case of this number, its exit code, and what is wrong with it."
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        case = CASES[seed % len(CASES)](folder, rng)
        before = contents(folder)
        with as_a_shell(folder, data) as (out, err):
            try: code = cli.main(case.argv)
            except SystemExit as e: code = e.code
            except Exception as e: code = f"{type(e).__name__}: {str(e)[:200]}"
        said = text_of(err)
        return case, code, [*faults(case, code, text_of(out), said, before, contents(folder))], said


def main(n, first=0):
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    counts, wrong = Counter(), 0
    with tempfile.TemporaryDirectory() as data:
        for seed in range(first, first + n):
            signal.alarm(120)  # none may hang
            case, code, found, said = run_case(seed, data)
            counts[case.kind, case.valid, code if code in (0, 2) else "other"] += 1
            wrong += bool(found)
            if not found and n > 1: continue
            print(seed, case.kind, [word[:60] for word in case.argv], *found, said[:400], sep="\n  ", flush=True)
    for (kind, valid, code), count in sorted(counts.items(), key=str):
        print(f"{kind:12} {({True: 'right', False: 'wrong', None: 'either'})[valid]:8} exit {code}: {count}")
    print(f"{sum(counts.values())} inputs, {wrong} with a fault")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

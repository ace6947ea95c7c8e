"""Trainings on a GPU: images a second, a step that learns its loss, the CPU's result, many at once, killed ones."""
import gc
import itertools
import math
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import usual_forms
from gpu_rows import Row, duration, failed, wait_for
from PIL import Image
from scipy import stats
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from calibnb import metrics
from calibnb.data import Split, Splits, load_data
from calibnb.losses import make_loss
from calibnb.meta import InnerLoss, MetaRecipe, MetaStepper
from calibnb.models import make_model
from calibnb.processes.pool import fork_server
from calibnb.runs import RunConfig
from calibnb.sweep import sweep
from calibnb.train import Recipe, Stepper, Trainer
from calibnb.train.batches import Batch

SCALE = (.4914, .4822, .4465), (.2023, .1994, .2010)  # of CIFAR-10
NETWORKS = {"ResNet-18": ("resnet18", 1.5, 5.), "ResNet-50": ("resnet50", None, None)}  # name, times the usual loop


class Pictures(Dataset):
    "Images one by one, each cut out, mirrored and normalised on its own, as torchvision's CIFAR-10 gives them."
    change = transforms.Compose([
        transforms.RandomCrop(32, padding=4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(*SCALE),
    ])

    def __init__(self, x, y, n):
        self.x, self.y, self.n = x.permute(0, 2, 3, 1).numpy(), y.tolist(), n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        i %= len(self.y)
        return self.change(Image.fromarray(self.x[i])), self.y[i]


def noise(n, batch_size):
    "Splits of images that show nothing, as large as CIFAR's."
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=draw)
    train = Split(x, torch.arange(n) % 10, scale=SCALE)
    few = train[:batch_size]
    return Splits("noise", 10, train, few, few)


def image_section(bench):
    "Images a second, beside the loop of the papers' code: float32, its images from four processes, a wait each step."
    splits, batch_size = noise(bench.size(12_800, 24), bench.size(128, 8)), bench.size(128, 8)
    for title, (name, at_least, compiled_at_least) in NETWORKS.items():
        network, known = bench.size(name, "small_cnn"), {}
        what = f"{title}, the usual loop"
        yield what, partial(usual_loop_row, bench, what, network, splits, batch_size, known)
        more = further_ways() if at_least else []
        for how, changes, target in ("eager", {}, at_least), ("compiled", dict(compile=True), compiled_at_least), *more:
            what, recipe = f"{title}, Trainer, bf16, channels last, {how}", image_recipe(batch_size, **changes)
            yield what, partial(trainer_row, bench, what, network, splits, recipe, known, target)
    what = "memory that these trainings still take when they are gone"
    yield what, partial(memory_left, bench, what)


def image_recipe(batch_size, **changes):
    "Batch, augmentation, sum of losses, clipping and momentum are those of the usual loop."
    changes |= dict(batch_size=batch_size, lr=1e-3, precision="bf16", channels_last=True)
    return Recipe.reference_training(1000, **changes)


def further_ways():
    "(name, changes of the recipe, target) of what a recipe may have beside compile=True."
    yield "CUDA graphs", dict(compile="reduce-overhead"), None
    yield "eager, deterministic", dict(deterministic=True), None


def focal_sum(logits, target):
    return len(target)*usual_forms.focal(logits, target)


def usual_loop_row(bench, what, network, splits, batch_size, known):
    model = torch.nn.DataParallel(make_model(network, 10, splits.in_shape).to(bench.device))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, .9, weight_decay=5e-4)
    pictures = Pictures(splits.train.x, splits.train.y, bench.size(45_000, 48))  # an epoch as long as CIFAR's
    loader = DataLoader(pictures, batch_size, shuffle=True, num_workers=bench.size(4, 0),
                        pin_memory=bench.device.type == "cuda")
    steps = usual_forms.training_steps(model, loader, optimizer, bench.device, focal_sum, clip=2.)
    busy, before = Busy(bench.device), torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        peak = bench.peak_mb(lambda: known.update(rate=batch_size*steady_rate(steps, bench.size(250, 3))))
        busy.start()
        list(itertools.islice(steps, 50))
        busy.stop()
    finally:
        torch.backends.cudnn.benchmark = before
    return busy.rows(Row(what, f"{known['rate']:,.0f} images/s, {busy.text}, {peak:,.0f} MB"))


def steady_rate(steps, most, first=20):
    "Steps a second of those after the first ones, which the loader has made in advance; each waits for its end."
    ends = []
    for _ in itertools.islice(steps, most):
        ends.append(time.perf_counter())
        if len(ends) > 2*first and ends[-1] - ends[first] > 5:
            break
    steady = ends[min(first, len(ends)//2):]
    return (len(steady) - 1)/(steady[-1] - steady[0])


class Busy:
    "The share of the time between start and stop in which the device computes."
    def __init__(self, device):
        self.device, self.text, self.error = device, "busy: not known", None

    def start(self):
        kind = getattr(torch.profiler.ProfilerActivity, self.device.type.upper())
        self.profile = torch.profiler.profile(activities=[kind])
        wait_for(self.device)
        try:
            self.profile.start()
        except Exception as e:  # not everybody may profile; the rest of the row is known all the same
            self.error = e
        self.begun = time.perf_counter()

    def stop(self):
        wait_for(self.device)
        seconds = time.perf_counter() - self.begun
        if self.error:
            return
        try:
            self.profile.stop()
            self.text = f"busy {busy_seconds(self.profile.events(), self.device)/seconds:.0%}"
        except Exception as e:
            self.error = e

    def rows(self, row):
        "The row, and one that says why it is not known how busy the device was."
        return [row, failed(f"{row.what}: how busy", self.error)] if self.error else [row]


def busy_seconds(events, device):
    "How long at least one of the device's kernels is at work."
    kind, busy, until = device.type.upper(), 0., -math.inf
    there = [e for e in events if e.device_type.name == kind and not getattr(e, "is_user_annotation", False)]
    for start, end in sorted((e.time_range.start, e.time_range.end) for e in there):
        busy += max(0., end - max(start, until))
        until = max(until, end)
    return busy*1e-6


class Enough(Exception):
    "A training has shown what it can."


class Watch:
    "Called after each epoch, notes when; after some seconds it looks how busy the device is in one more."
    def __init__(self, device, seconds):
        self.seconds, self.ends, self.busy, self.is_last = seconds, [], Busy(device), False
        self.start = time.perf_counter()

    def __call__(self, _):
        if self.is_last:
            self.busy.stop()
            raise Enough
        self.ends.append(time.perf_counter())
        if len(self.ends) > 2 and self.ends[-1] - self.ends[0] >= self.seconds:
            self.is_last = True
            self.busy.start()

    def seconds_of(self):
        "(of the first epoch, which compiles; of those that follow)."
        return self.ends[0] - self.start, statistics.median(b - a for a, b in zip(self.ends, self.ends[1:]))


def fit_until_seen(trainer, splits, watch):
    try:
        trainer.fit(splits, progress=watch)
    except Enough:
        pass


def trainer_row(bench, what, network, splits, recipe, known, at_least):
    torch.compiler.reset()
    trainer = Trainer(make_model(network, 10, splits.in_shape), make_loss("focal"), recipe, str(bench.device))
    watch = Watch(bench.device, bench.size(4., 0.))
    peak = bench.peak_mb(partial(fit_until_seen, trainer, splits, watch))
    first, later = watch.seconds_of()
    rate = len(splits.train)/later
    row = Row(what, f"{rate:,.0f} images/s, {watch.busy.text}, {peak:,.0f} MB, first epoch {duration(first)}")
    if "rate" in known:
        row.beside, row.ratio = f"the usual loop: {known['rate']:,.0f} images/s", rate/known["rate"]
    if at_least:
        row.target, row.met = f"at least {at_least:g} times", row.ratio >= at_least
    return watch.busy.rows(row)


def memory_left(bench, what):
    torch.compiler.reset()
    gc.collect()
    taken = torch.cuda.memory_allocated(bench.device)/2**20 if bench.device.type == "cuda" else math.nan
    return Row(what, f"{taken:,.0f} MB")


def meta_section(bench):
    "A step that also learns its loss, beside the same by double backward and beside a plain step."
    n, device = bench.size(128, 8), bench.device
    x, y = torch.randn(n, 3, 32, 32, device=device), torch.arange(n, device=device) % 10
    batch, recipe = Batch(x, y, None, 1., n, 1), Recipe(batch_size=n, lr=1e-3)
    network = bench.size("resnet18", "small_cnn")
    model = make_model(network, 10, (3, 32, 32)).to(device).train()
    plain = Stepper(model, make_loss("ce"), recipe, device)
    for scope, jvp_by in ("head", "forward"), ("full", "forward"), ("full", "difference"):
        meta = MetaRecipe(scope=scope, jvp_by=jvp_by)
        step = MetaStepper(model, InnerLoss(meta), recipe, device, meta, Split(x.flip(0), y))
        ours, double = partial(step, batch, 1e-3), partial(usual_forms.double_backward_step, step, batch, scope)
        what = f"gamma-Net step, {scope}{', by a difference' if jvp_by == 'difference' else ''}, batch {n}"
        yield what, partial(bench.compare, what, ours, "double backward", double)
        yield f"memory, {what}", partial(bench.compare_memory, f"memory, {what}", ours, "double backward", double)
        yield what, partial(bench.compare, what, ours, "a plain step", partial(plain, batch, 1e-3))


def digits_section(bench):
    "The same trainings of the digits MLP on the CPU and on the GPU: equal but for rounding, and so within seed noise."
    seeds, epochs = bench.size((5, 150), (2, 2))
    yield "digits MLP", partial(digits_rows, bench, range(seeds), epochs)


def digits_rows(bench, seeds, epochs):
    start = time.perf_counter()
    here = [digits_scores(seed, epochs, "cpu") for seed in seeds]
    between = time.perf_counter()
    there = [digits_scores(seed, epochs, str(bench.device)) for seed in seeds]
    end = time.perf_counter()
    n_test = len(load_data("digits").test)
    for name, cpu, gpu in zip(("accuracy", "ECE"), zip(*here), zip(*there)):
        yield same_row(name, cpu, gpu, n_test)
    what = f"digits MLP, {epochs} epochs, {len(seeds)} seeds"
    yield Row(what, duration(end - between), f"CPU: {duration(between - start)}", (end - between)/(between - start))


def digits_scores(seed, epochs, device):
    "(accuracy, ECE) on the test set."
    splits = load_data("digits", seed=seed)
    trainer = Trainer(make_model("mlp", 10, splits.in_shape, seed=seed), make_loss("ce"),
                      Recipe.quick(epochs, seed=seed), device)
    trainer.fit(splits)
    preds = trainer.predict(splits.test)
    return preds.hit.double().mean().item(), float(metrics.ece(preds.probs, preds.target))


def same_row(name, cpu, gpu, n_test):
    "Do two means of some seeds differ by less than 95 % of such differences do by chance, or by one test sample?"
    S, gap = len(cpu), statistics.mean(gpu) - statistics.mean(cpu)
    error = math.sqrt((statistics.variance(cpu) + statistics.variance(gpu))/S)
    allowed = max(stats.t.ppf(.975, 2*S - 2)*error, 1/n_test)
    target = f"within {100*allowed:.2f} points: 95 % of differences between means of {S} seeds, or one test sample"
    return Row(f"digits MLP, {name}", f"{statistics.mean(gpu):.2%}", f"CPU: {statistics.mean(cpu):.2%}",
               target=target, met=abs(gap) <= allowed)


def many_section(bench):
    "Eight trainings that share the GPU, each in a process of its own, beside the same one after another."
    yield "eight at once", partial(many_row, bench)


def many_row(bench):
    n, epochs = bench.size((8, 100), (2, 1))
    configs = [RunConfig(recipe=Recipe.quick(epochs, seed=seed)) for seed in range(n)]
    sweep_seconds([RunConfig(recipe=Recipe.quick(1))], 1)  # the first one starts what the others begin from
    together, one_by_one = (sweep_seconds(configs, per_gpu) for per_gpu in (n, 1))
    what = f"{n} digits trainings of {epochs} epochs, --per-gpu {n}"
    return Row(what, duration(together), f"one after another: {duration(one_by_one)}", together/one_by_one)


def sweep_seconds(configs, per_gpu):
    with tempfile.TemporaryDirectory() as d:
        start = time.perf_counter()
        table = sweep(configs, d, per_gpu=per_gpu, progress=False)
        seconds = time.perf_counter() - start
    if bad := [f"{row.job}: {row.reason}" for row in table.itertuples() if row.state != "done"]:
        raise RuntimeError(f"{len(bad)} of {len(table)} runs failed, the first: {bad[0]}")
    return seconds


def resume_section(bench):
    "A training that is killed in the middle, and goes on in another process."
    yield "killed and resumed", partial(resume_row, bench)


def resume_row(bench, epochs=60):
    device = str(bench.device)
    with tempfile.TemporaryDirectory() as d:
        file = Path(d)/"checkpoint.pt"
        killed = train_and_kill(device, epochs, file)
        saved = len(torch.load(file, weights_only=True)["history"])
        resumed, whole = digits_training(device, epochs, file), digits_training(device, epochs)
    seen = [row["epoch"] for row in resumed.history.rows]
    if seen != list(range(1, epochs + 1)):
        raise RuntimeError(f"the history of the resumed training has the epochs {seen}")
    pairs = zip(resumed.model.parameters(), whole.model.parameters())
    worst = max((a - b).abs().max().item() for a, b in pairs)
    what = f"digits MLP, killed after epoch {killed} of {epochs}, and resumed after epoch {saved}"
    return Row(what, f"weights differ by {worst:.2g}", "a training that was left alone", target="the same bits",
               met=worst == 0)


def digits_training(device, epochs, checkpoint=None, progress=False):
    splits = load_data("digits")
    recipe = Recipe.quick(epochs, deterministic=True)
    trainer = Trainer(make_model("mlp", 10, splits.in_shape), make_loss("focal"), recipe, device)
    trainer.fit(splits, checkpoint=checkpoint, progress=progress, every_s=.1)
    return trainer


def train_and_kill(device, epochs, file):
    "Train in another process, and kill it in the middle while it waits for its parent; the epochs that it had done."
    context = fork_server()
    pipe, theirs = context.Pipe()
    process = context.Process(target=train_step_by_step, args=(device, epochs, file, theirs))
    process.start()
    theirs.close()
    for epoch in range(1, epochs):
        pipe.recv()
        if epoch > epochs/3 and file.exists():
            process.kill()
            process.join()
            return epoch
        pipe.send("go on")
    raise RuntimeError(f"{epochs} epochs were over before a checkpoint was written")


def train_step_by_step(device, epochs, file, pipe):
    def progress(n):
        pipe.send(n)
        pipe.recv()
    digits_training(device, epochs, file, progress)

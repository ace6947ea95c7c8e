"Data sets on disk: tiny files in the published formats, read, cached, split and scaled."
import os
import pickle
import zlib

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from sklearn.utils import Bunch

from calibnb.data.cache import MissingData
from calibnb.data import Rows, Split, data_options, list_data, load_data, split_arrays, true_posterior
from calibnb.data.downloads import downloads
from calibnb.data.images import CIFAR10_CLASSES, read_cifar, read_tiny_imagenet
from calibnb.data.texts import read_sst
from calibnb.data.trees import parse_tree

ON_DISK = ["cifar10", "cifar100", "svhn", "tiny_imagenet", "20newsgroups", "sst"]

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((60, 5)), np.arange(60) % 3


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBNB_DATA", str(tmp_path))
    for module in "cifar", "svhn":  # their MD5 sums are of the whole sets
        monkeypatch.setattr(f"torchvision.datasets.{module}.check_integrity", lambda *args: True)
    return tmp_path


def draw(path, value, side=32):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((side, side, 3), value, dtype=np.uint8)).save(path)


def write_cifar(root, name, n=20, classes=10):
    if name == "cifar10":
        folder, key, meta = root/"cifar-10-batches-py", "labels", ("batches.meta", "label_names")
        batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    else:
        folder, key, meta = root/"cifar-100-python", "fine_labels", ("meta", "fine_label_names")
        batches = ["train", "test"]
    folder.mkdir()
    for b in batches:
        labels = [i % classes for i in range(n)]
        data = np.tile(np.array(labels, dtype=np.uint8)[:, None], (1, 3072))
        data[:, :1024] = 200  # red
        (folder/b).write_bytes(pickle.dumps({"data": data, key: labels}))
    (folder/meta[0]).write_bytes(pickle.dumps({meta[1]: [str(i) for i in range(classes)]}))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_as_published(root, name):
    write_cifar(root, name, n=100 if name == "cifar100" else 20, classes=10)
    splits = load_data(name, seed=1)
    assert splits.in_shape == (3, 32, 32) and splits.train.x.dtype == torch.uint8
    assert [len(s) for s in splits.parts.values()] == ([90, 10, 20] if name == "cifar10" else [90, 10, 100])
    assert (splits.train.x[:, 0] == 200).all() and torch.equal(splits.train.x[:, 1, 0, 0].long(), splits.train.y)
    red = splits.train.ready(splits.train.x)[:, 0]
    assert torch.allclose(red, torch.tensor((200/255 - .4914)/.2023), atol=1e-5)
    assert all((splits.val.y == c).sum() == 1 for c in range(10))


def test_cifar_as_images_in_two_places_and_human_labels(root):
    labels = np.array([c for c in range(10) for _ in range(2)])
    for c, name in enumerate(CIFAR10_CLASSES):
        for i in range(10):
            draw(root/"train"/name/f"{i}.png", 10*c + i)
        for i in range(2):
            draw(root/"test"/name/f"{i}.png", 100 + 10*c + i)
    splits = load_data("cifar10")
    assert len(splits.test) == 20 and splits.test.posterior is None
    with pytest.raises(MissingData, match="labels in the original order"):
        load_data("cifar10", human_labels=True)
    original = rng.permutation(labels)
    human = np.zeros((20, 10))
    human[np.arange(20), original] = np.arange(20)  # in the original order, each image has its own number
    np.save(root/"cifar10-test-labels.npy", original)
    for load in load_data, true_posterior:
        with pytest.raises(MissingData, match="cifar10h is not in"):
            load("cifar10", human_labels=True)
    np.save(root/"cifar10h-probs.npy", human)
    test = load_data("cifar10", human_labels=True).test
    assert torch.equal(true_posterior("cifar10", human_labels=False), test.posterior)  # the options are of a training
    numbers = test.posterior.gather(1, test.y[:, None])[:, 0]
    for c in range(10):  # the first image of a class is the first of that class in the original order
        assert numbers[test.y == c].tolist() == np.flatnonzero(original == c).tolist()
    os.rename(root/"train", root/"t")
    (root/"cifar10").mkdir()
    os.rename(root/"t", root/"cifar10"/"train")
    os.rename(root/"test", root/"cifar10"/"test")
    assert len(read_cifar()["train_y"]) == 100


def test_svhn(root):
    for part, n in ("train", 40), ("test", 10):
        y = np.arange(n) % 10 + 1  # SVHN says 10 for zero
        x = np.broadcast_to(y.astype(np.uint8), (32, 32, 3, n)).copy()
        scipy.io.savemat(root/f"{part}_32x32.mat", dict(X=x, y=y[:, None]))
    splits = load_data("svhn", val=.25)
    assert [len(s) for s in splits.parts.values()] == [30, 10, 10] and splits.num_classes == 10
    assert torch.equal(splits.train.x[:, 0, 0, 0].long() % 10, splits.train.y)


def test_tiny_imagenet(root):
    home, classes = root/"tiny-imagenet-200", ["n01", "n02", "n03"]
    for c, name in enumerate(classes):
        for i in range(10):
            draw(home/"train"/name/"images"/f"{name}_{i}.JPEG", 80*c, 64)
    notes = []
    for i, c in enumerate([2, 0, 1]):
        draw(home/"val"/"images"/f"val_{i}.JPEG", 80*c, 64)
        notes.append(f"val_{i}.JPEG\t{classes[c]}\t0\t0\t62\t62")
    (home/"val"/"val_annotations.txt").write_text("\n".join(notes))
    splits = load_data("tiny_imagenet")
    assert [len(s) for s in splits.parts.values()] == [27, 3, 3] and splits.in_shape == (3, 64, 64)
    assert splits.test.y.tolist() == [2, 0, 1]
    assert (splits.test.x[:, 0, 0, 0].long() - 80*splits.test.y).abs().max() <= 2  # JPEG changes values a little
    assert sorted(splits.val.y.tolist()) == [0, 1, 2]
    assert read_tiny_imagenet()["train_x"].flags.writeable is False


def test_newsgroups(root):
    texts = ["The cat sat", "a DOG; the dog!", "cat and dog"]
    messages = Bunch(data=texts*10, target=np.arange(30) % 3, target_names=["a", "b", "c"],
                     filenames=np.array([str(i) for i in range(30)]))
    cache = dict(train=messages, test=messages)
    (root/"20news-bydate_py3.pkz").write_bytes(zlib.compress(pickle.dumps(cache)))
    splits = load_data("20newsgroups", length=20, vocabulary=6, val=.2)
    assert splits.in_shape == (20,) and splits.num_classes == 3
    # dog 30, cat 20 and the 20, then a and and: ids 2, 3, 4, 5; sat and the sixth word are unknown
    assert splits.test.x[:3, :5].tolist() == [[4, 3, 1, 0, 0], [5, 2, 4, 2, 0], [3, 1, 2, 0, 0]]


def test_sst_sizes_and_options(root):
    (root/"trees").mkdir()
    texts = dict(train="(4 (3 Good) (2 film))\n(2 (2 A) (2 film))\n(0 (1 bad) (2 film))\n",
                 dev="(3 (2 a) (3 good))", test="(1 (2 odd) (1 bad))")
    for name, text in texts.items():
        (root/"trees"/f"{name}.txt").write_text(text)
    splits = load_data("sst")
    assert [len(s) for s in splits.parts.values()] == [2, 1, 1] and splits.num_classes == 2
    assert load_data("sst", fine=True).num_classes == 5 and len(read_sst(fine=True)["train_y"]) == 3
    assert read_sst(phrases=False)["train_x"][0, :2, 4].tolist() == [-1, -1]
    (root/"trees"/"dev.txt").unlink()
    with pytest.raises(MissingData, match="sst is not in"):
        load_data("sst")


@pytest.mark.parametrize("line, message", [
    ("good", "does not begin with a bracket"), ("(3 (2 a)", "ends before its brackets are closed"),
    ("()", "want nodes"), ("(3)", "want nodes"), ("(x a)", "want nodes"), ("(3 a (2 b))", "two children in brackets")])
def test_bad_trees_are_refused(line, message):
    with pytest.raises(ValueError, match=f"tree: .*{message}"):
        parse_tree(line)


def test_words_of_sst_may_have_vectors(root):
    "Words of the file have the vector of its line; words of val and test have ids then, and so vectors, too."
    (root/"sst").mkdir()
    train, dev, test = "(4 (3 Good) (2 film))\n(0 (1 bad) (2 film))", "(3 (2 a) (3 good))", "(1 (2 odd) (1 bad))"
    texts = dict(train=train, dev=dev, test=test)
    for name, text in texts.items():
        (root/"sst"/f"{name}.txt").write_text(text)
    with pytest.raises(MissingData, match="glove.6B.3d.txt there .* or leave the option vectors out"):
        load_data("sst", vectors="glove.6B.3d")
    lines = [", 0.1 0.2 0.3", "film -0.25 1 2e-2", "Good 9 9 9", "odd 4 5 6", ". . . 7 8 9", "bad\u00a0idea 1 2 3"]
    (root/"glove.6B.3d.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    splits = load_data("sst", vectors="glove.6B.3d")
    film, odd, bad = (splits.parts[part].x[0, row, 0] for part, row in (("train", 1), ("test", 0), ("test", 1)))
    assert torch.equal(splits.vectors[film], torch.tensor([-.25, 1., .02]))
    assert torch.equal(splits.vectors[odd], torch.tensor([4., 5., 6.])) and odd > 1
    assert splits.vectors[[0, 1, int(bad)]].isnan().all() and splits.vectors.shape == (7, 3)
    assert load_data("sst").vectors is None and load_data("sst").test.x[0, 0, 0] == 1
    (root/"glove.6B.3d.txt").write_text("film 1 2 3\nodd 4 5\n")  # another file of that name is read anew
    with pytest.raises(ValueError, match=r"line 2: '4 5' after a word, want 3 numbers"):
        load_data("sst", vectors="glove.6B.3d")


def test_folders_of_images(tmp_path, monkeypatch):
    monkeypatch.setenv("CALIBNB_DATA", str(tmp_path/"data"))
    for label in "ant", "bee":
        for i in range(20):
            draw(tmp_path/"insects"/label/f"{i:02}.jpg", 100*(label == "bee"), 20 + i % 3)
    with pytest.raises(ValueError, match="set the option size"):
        load_data(f"imagefolder:{tmp_path}/insects")
    splits = load_data(f"imagefolder:{tmp_path}/insects", size=16)
    assert [len(s) for s in splits.parts.values()] == [28, 4, 8] and splits.in_shape == (3, 16, 16)
    assert all(s.y.float().mean() == .5 for s in splits.parts.values())
    scaled = load_data(f"imagefolder:{tmp_path}/insects", size=16, mean=[.5]*3, std=[.25]*3)
    assert scaled.train.scale == ((.5,)*3, (.25,)*3)
    (tmp_path/"insects"/"bee"/"20.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match="20.jpg: not a readable image"):
        load_data(f"imagefolder:{tmp_path}/insects", size=16)
    assert not list((tmp_path/"data"/"decoded").glob(".*[!k]"))  # nothing half-written is left


def test_npz(tmp_path):
    np.savez(tmp_path/"a.npz", x_train=X, y_train=Y, x_val=X[:9], y_val=Y[:9], x_test=X[:6], y_test=Y[:6])
    splits = load_data(f"npz:{tmp_path}/a.npz")
    assert [len(s) for s in splits.parts.values()] == [60, 9, 6] and splits.train.x.dtype == torch.float32


@pytest.mark.parametrize("arrays, message", [
    (dict(z=X), "holds z, want x and y"),
    (dict(x=np.array([object()]*3), y=np.arange(3)), "not an .npz file of plain arrays"),
    (dict(x_train=X, y_train=Y, x_test=X, test_y=Y), "has x_test but no y_test; its arrays are"),
    (dict(x=np.where(np.arange(60)[:, None] == 7, np.nan, X), y=Y), "x: holds nan or inf, first in sample 7"),
    (dict(x_train=X, y_train=Y, X_test=X, Y_test=Y), "has X_test, want x_test in lower case"),
], ids=["other-names", "objects", "mixed-names", "nan", "capitals"])
def test_bad_arrays(tmp_path, arrays, message):
    np.savez(tmp_path/"a.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_data(f"npz:{tmp_path}/a.npz")


def test_bad_npz_files(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        load_data(f"npz:{tmp_path}/none.npz")
    (tmp_path/"text.npz").write_text("text")
    np.save(tmp_path/"array.npy", X)
    (tmp_path/"array.npy").rename(tmp_path/"array.npz")
    for name in "text", "array":
        with pytest.raises(ValueError, match="not an .npz file"):
            load_data(f"npz:{tmp_path}/{name}.npz")


def test_raw_images_without_a_scale():
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match="scale: None, but the inputs are uint8 images"):
        Split(images, torch.zeros(2)).ready(images)


@pytest.mark.parametrize("options, message", [
    (dict(n_train=0), "n_train: 0, want at least 1"),
    (dict(n_train=29), "n_train: 29, want at most the 21 samples"),
    (dict(val=1.), "val: 1.0, want a share"),
    (dict(val=0.), "want at least one sample for validation"),
], ids=str)
def test_bad_splits(options, message):
    arrays = dict(train_x=np.zeros((30, 2), np.float32), train_y=np.arange(30) % 3)
    with pytest.raises(ValueError, match=message):
        split_arrays("flat", arrays, 0, **options)


def test_a_mean_without_a_standard_deviation():
    with pytest.raises(ValueError, match="mean, std: .* want both"):
        load_data("imagefolder:/nowhere", mean=[.5])


def test_names_and_options():
    assert {*ON_DISK, "imagefolder:/path", "npz:/path"} <= set(list_data())
    assert data_options("cifar10", meta_val=.1) == dict(val=.1, meta_val=.1, n_train=None, human_labels=False)
    assert data_options("npz:/x.npz") == dict(val=.1, meta_val=0., n_train=None, test=.2)
    assert set(downloads) == {*ON_DISK, "cifar10h"}


@pytest.mark.parametrize("name, options, message", [
    ("cifar", {}, "did you mean 'cifar10'"),
    ("cifar10", dict(n_val=5), "'n_val' is not known"),
    ("npz:", {}, "want a path after the colon"),
    ("npz", {}, "is not known"),
    ("zip:/x", {}, "is not known"),
], ids=str)
def test_unknown_names_and_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        data_options(name, **options)


@pytest.mark.parametrize("name", ON_DISK)
def test_a_missing_set_says_what_to_run(tmp_path, monkeypatch, name):
    monkeypatch.setenv("CALIBNB_DATA", str(tmp_path))
    with pytest.raises(MissingData, match=f"{name} is not in {tmp_path}.*run `calibnb download {name}`"):
        load_data(name)


@pytest.mark.parametrize("index", [
    torch.tensor([12, 3, 7]), torch.tensor([3]), torch.tensor([4, 4, 1]), torch.tensor([], dtype=torch.long),
    torch.arange(15) % 2 == 0, slice(2, 9), 5], ids=["some", "one", "twice", "none", "mask", "slice", "single"])
def test_rows_on_disk_equal_rows_in_memory(index):
    array, rows = torch.arange(40).view(20, 2), torch.randperm(20)[:15]
    assert torch.equal(Rows(array, rows)[index], array[rows][index])


def test_rows_on_disk_in_a_split():
    array, rows = torch.arange(40).view(20, 2), torch.randperm(20)[:15]
    lazy = Rows(array, rows)
    assert lazy.nbytes == 15*2*8 and len(lazy) == 15
    split = Split(lazy, torch.arange(15))
    assert len(split[torch.tensor([1, 2])]) == 2 and isinstance(split[:4].x, torch.Tensor)

"Corruptions against slow twins in plain Python and SciPy, one image or one pixel at a time; data sets with them."
import colorsys
import math

import numpy as np
import pytest
import torch
from conftest import vectors, within
from scipy import ndimage

from calibnb.data import Split, corrupt, data_options, list_corruptions, load_data, register_data, split_arrays
from calibnb.data import corruptions
from calibnb.data.corruptions import _KINDS, _blur_along_line, _disc, _elastic_transform, _plasma, _uniform
from calibnb.runs import RunConfig

PHOTO = torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(3))
PHOTO[0, :, 0, 0] = 0.
PHOTO[0, :, 0, 1] = .4  # black and grey


GOLDEN, GIVEN = vectors("corruptions")


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["id"])
def test_golden_corruptions(case, monkeypatch):
    monkeypatch.setattr(corruptions, "_plasma", lambda *args: torch.tensor(GIVEN["fog"])[None, None])
    made = corrupt(torch.tensor(GIVEN["image"])[None], case["kind"], case["severity"])
    within(made[0], case["expected"], case)


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def constants(kind, severity, table=0):
    return _KINDS[kind][1 + table][severity - 1]


def each_pixel(fn):
    "Map each pixel by fn(r, g, b) -> (r, g, b)."
    image = PHOTO.double().movedim(1, -1).numpy()
    return np.array([[[fn(*pixel) for pixel in row] for row in one] for one in image]).clip(0, 1)


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("table", [0, 1])
def test_colours(severity, table):
    "Brightness and saturation, through HSV and back."
    more = constants("brightness", severity, table)
    factor, plus = constants("saturate", severity, table)

    def brighter(*rgb):
        h, s, v = colorsys.rgb_to_hsv(*rgb)
        return colorsys.hsv_to_rgb(h, s, min(1, v + more))

    def saturated(*rgb):
        h, s, v = colorsys.rgb_to_hsv(*rgb)
        return colorsys.hsv_to_rgb(h, min(1, max(0, s*factor + plus)), v)
    for kind, twin in ("brightness", brighter), ("saturate", saturated):
        ours = corrupt(PHOTO, kind, severity, constants=("cifar10_c", "imagenet_c")[table])
        np.testing.assert_allclose(ours.movedim(1, -1), each_pixel(twin), atol=2e-6)


@pytest.mark.parametrize("severity", range(1, 6))
def test_blurs(severity):
    "A Gaussian as scikit-image has it; a disc, correlated with mirrored images."
    sigma = constants("gaussian_blur", severity)
    want = ndimage.gaussian_filter(PHOTO.double().numpy(), (0, 0, sigma, sigma), mode="nearest", truncate=4.)
    np.testing.assert_allclose(corrupt(PHOTO, "gaussian_blur", severity), want, atol=1e-6)
    radius, soft = constants("defocus_blur", severity)
    at = range(-8, 9)
    disc = np.array([[float(x*x + y*y <= radius**2) for x in at] for y in at])
    line = [math.exp(-i*i/(2*soft**2)) for i in (-1, 0, 1)]
    rim = np.outer(line, line)/np.outer(line, line).sum()
    kernel = ndimage.convolve(disc/disc.sum(), rim, mode="constant")
    want = [[ndimage.correlate(c, kernel, mode="mirror") for c in image] for image in PHOTO.double().numpy()]
    np.testing.assert_allclose(corrupt(PHOTO, "defocus_blur", severity), want, atol=1e-6)
    assert _disc(radius, soft).sum().item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("angle", [-117., -45., 0., 13., 90.])
def test_motion_pixel_by_pixel(angle):
    radius, sigma, (H, W) = 3, 1.5, PHOTO.shape[2:]
    weights = [math.exp(-i*i/(2*sigma**2)) for i in range(2*radius + 1)]
    turn, want = math.radians(angle), np.zeros(PHOTO[0].shape)
    for i, weight in enumerate(weights):
        down, right = math.ceil(i*math.sin(turn) - .5), math.ceil(i*math.cos(turn) - .5)
        for h in range(H):
            for w in range(W):
                row, column = min(max(h + down, 0), H - 1), min(max(w + right, 0), W - 1)
                want[:, h, w] += weight/sum(weights)*PHOTO[0, :, row, column].double().numpy()
    ours = _blur_along_line(PHOTO, torch.tensor([angle]*3, dtype=torch.float32), radius, sigma)[0]
    np.testing.assert_allclose(ours, want, atol=1e-6)


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_zoom_and_contrast(severity):
    stop, step = constants("zoom_blur", severity)
    factors, n = np.arange(1, stop, step), PHOTO.shape[-1]
    image = PHOTO[1].double().numpy()
    total = image.copy()
    for factor in factors:
        size = math.ceil(n/factor)
        top = (n - size)//2
        large = ndimage.zoom(image[:, top:top + size, top:top + size], (1, factor, factor), order=1)
        cut = (large.shape[1] - n)//2
        total += large[:, cut:cut + n, cut:cut + n]
    np.testing.assert_allclose(corrupt(PHOTO, "zoom_blur", severity)[1], total/(len(factors) + 1), atol=1e-5)
    mean, c = image.mean((1, 2), keepdims=True), constants("contrast", severity)
    np.testing.assert_allclose(corrupt(PHOTO, "contrast", severity)[1], (c*image + (1 - c)*mean).clip(0, 1), atol=1e-6)


@pytest.mark.parametrize("c", [constants("elastic_transform", s) for s in (1, 2, 3, 5)], ids=str)
def test_elastic_by_scipy(c):
    "Three corners are moved and the image with them, then every pixel by a smooth field."
    pull, together, corners = c
    N, C, n, _ = PHOTO.shape
    ours, g = _elastic_transform(PHOTO, c, drawn()).clamp(0, 1), drawn()
    moves, fields = _uniform((N, 3, 2), -corners*n, corners*n, g), _uniform((N, 2, n, n), -1, 1, g)
    down, across = np.mgrid[:n, :n].astype(float)
    middle, third = n//2, n//3
    points = np.array([[middle + third]*2, [middle + third, middle - third], [middle - third]*2], dtype=float)
    for i in range(N):
        there = np.c_[points + moves[i].double().numpy(), np.ones(3)]
        x, y = (np.linalg.solve(there, points).T @ np.stack([across.ravel(), down.ravel(), np.ones(n*n)]))
        sheet = [ndimage.map_coordinates(c_, [y, x], order=1, mode="mirror").reshape(n, n) for c_ in PHOTO[i].double()]
        dx, dy = (pull*n*(ndimage.gaussian_filter(f, together*n, mode="reflect", truncate=3) if together else f)
                  for f in fields[i].double().numpy())
        want = [ndimage.map_coordinates(c_, [down + dy, across + dx], order=1, mode="reflect") for c_ in sheet]
        np.testing.assert_allclose(ours[i], want, atol=1e-4)


def test_a_landscape_point_by_point():
    "A square of 4, from its one corner: the rule of diamonds and squares with wrapped edges, and the same draws."
    g, wobble, decay = drawn(5), 100., 2.
    draws = [_uniform((1, k, k), -1, 1, g).double().numpy()[0] for k in (1, 1, 1, 2, 2, 2)]
    f = np.zeros((4, 4))
    for step, (middle, upper, left) in ((4, draws[:3]), (2, draws[3:])):
        h = step//2
        def mean(points): return sum(f[r % 4, c % 4] for r, c in points)/4
        for i in range(0, 4, step):
            for j in range(0, 4, step):
                corners = [(i, j), (i + step, j), (i, j + step), (i + step, j + step)]
                f[i + h, j + h] = mean(corners) + wobble**2*middle[i//step, j//step]
        for i in range(0, 4, step):
            for j in range(0, 4, step):
                around = [(i, j), (i, j + step), (i + h, j + h), (i - h, j + h)]
                f[i, j + h] = mean(around) + wobble**2*upper[i//step, j//step]
                around = [(i, j), (i + step, j), (i + h, j + h), (i + h, j - h)]
                f[i + h, j] = mean(around) + wobble**2*left[i//step, j//step]
        wobble /= decay
    want = (f - f.min())/(f.max() - f.min())
    np.testing.assert_allclose(_plasma(1, 4, decay, drawn(5))[0, 0], want, atol=1e-5)


@pytest.mark.parametrize("kind", list_corruptions())
@pytest.mark.parametrize("table", ["cifar10_c", "imagenet_c"])
def test_any_size_and_number(kind, table):
    "Small images, images that are no squares, grey ones, one alone; uint8 and floats agree to a grey value."
    for shape in ((1, 3, 4, 4), (2, 3, 9, 6), (300, 3, 8, 8), (1, 1, 4, 4)):
        if shape[1] == 1 and kind == "saturate":
            continue
        pixels = torch.randint(0, 256, shape, generator=drawn(), dtype=torch.uint8)
        copy = pixels.clone()
        made = corrupt(pixels, kind, 5, constants=table)
        floats = corrupt(pixels.float()/255, kind, 5, constants=table)
        assert made.shape == shape and made.dtype == torch.uint8 and pixels.equal(copy)
        assert floats.isfinite().all() and (255*floats - made).abs().max() <= 1.01
        assert corrupt(pixels, kind, 5, constants=table, seed=0).equal(made)


def test_noise_is_the_same_at_each_severity_and_another_with_another_seed():
    grey = torch.full((2, 1, 8, 8), .5)
    one, two = (corrupt(grey, "gaussian_noise", severity) - .5 for severity in (1, 2))
    torch.testing.assert_close(two, 1.5*one)
    assert not corrupt(grey, "gaussian_noise", 1, seed=1).equal(one + .5)


def test_a_normalised_split_is_corrupted_between_0_and_1():
    "A split of floats is taken to [0, 1], corrupted, and taken back."
    pixels = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    mean, std = .3, .5
    split = Split((pixels - mean)/std, torch.zeros(4, dtype=torch.int64), scale=((mean,), (std,)))
    found = corruptions.corrupt_split(split, kind="contrast", severity=2).x
    torch.testing.assert_close(found*std + mean, corrupt(pixels, "contrast", 2))


def test_a_registered_set_is_corrupted_in_a_run():
    "The run is named by the code of the set; options of the set and of the corruption are checked."
    @register_data("stripes")
    def stripes(seed, wide: int = 2):
        x = np.tile((np.arange(8)//wide % 2*255).astype(np.uint8), (60, 1, 8, 1))
        return split_arrays("stripes", dict(train_x=x, train_y=np.arange(60) % 3), seed, val=.2)
    plain, foggy = RunConfig(data="stripes"), RunConfig(data="corrupted:stripes", data_args=dict(kind="fog"))
    assert foggy.data_args == dict(wide=2, kind="fog", severity=3, constants="cifar10_c")
    assert foggy.code == plain.code and foggy.path("r") != plain.path("r")
    clear, splits = load_data("stripes"), load_data("corrupted:stripes", kind="fog", severity=5)
    assert splits.test.x.dtype == torch.uint8 and splits.val.x.equal(clear.val.x)
    assert not splits.test.x.equal(clear.test.x) and splits.test.scale == clear.test.scale
    with pytest.raises(ValueError, match="'kinds' is not known"):
        data_options("corrupted:stripes", kinds="fog")
    with pytest.raises(ValueError, match="'corrupted' is not known"):
        load_data("corrupted")


@pytest.mark.parametrize("radius, rim", [(8, 1), (10, 2)])
def test_a_disc_is_softened_by_one_pixel_up_to_radius_8(radius, rim):
    "As in ImageNet-C, where the Gaussian has 3 x 3 pixels up to radius 8, and 5 x 5 above."
    disc = _disc(radius, .5)[0, 0]
    assert int((disc[len(disc)//2] > 0).sum()) == 2*(radius + rim) + 1

"""Golden numbers of corruptions that draw nothing, and of fog: `python tests/vectors/corruptions.py`.

One pixel at a time in plain Python, with the constants of CIFAR-10-C written out; colours through HSV and back. The
landscape of the fog is given.
"""
import colorsys
import json
import math
import random
from pathlib import Path

CONSTANTS = {  # at severities 1 and 5
    "brightness": (.05, .3), "contrast": (.75, .15), "saturate": ((.3, 0), (2.5, .2)), "gaussian_blur": (.4, 1.),
    "fog": ((.2, 3), (1.5, 1.75)), "rotate": (15, 75)}
SIZE = range(4)


def colours(image, fn):
    "fn(h, s, v) -> (h, s, v) of each pixel; `image` is three planes."
    made = [[[0.]*4 for _ in SIZE] for _ in range(3)]
    for i in SIZE:
        for j in SIZE:
            pixel = colorsys.hsv_to_rgb(*fn(*colorsys.rgb_to_hsv(*(plane[i][j] for plane in image))))
            for plane, value in zip(made, pixel):
                plane[i][j] = value
    return made


def planes(image, fn):
    "fn(plane, i, j) -> a number, for each pixel of each plane."
    return [[[fn(plane, i, j) for j in SIZE] for i in SIZE] for plane in image]


def contrast(image, c, fog):
    means = [sum(map(sum, plane))/16 for plane in image]
    return [[[c*v + (1 - c)*mean for v in row] for row in plane] for plane, mean in zip(image, means)]


def gaussian_blur(image, c, fog):
    reach = int(4*c + .5)
    weights = {d: math.exp(-d*d/(2*c*c)) for d in range(-reach, reach + 1)}
    def inside(i): return min(max(i, 0), 3)
    def smooth(plane, i, j):
        return sum(a*b*plane[inside(i + d)][inside(j + e)]
                   for d, a in weights.items() for e, b in weights.items())/sum(weights.values())**2
    return planes(image, smooth)


def rotate(image, c, fog):
    "Counter-clockwise; between pixels as a plane through the four around, which are black outside."
    cos, sin = math.cos(math.radians(c)), math.sin(math.radians(c))
    def turned(plane, i, j):
        down, right = i - 1.5, j - 1.5
        y, x = right*sin + down*cos + 1.5, right*cos - down*sin + 1.5
        total = 0.
        for k in (math.floor(y), math.floor(y) + 1):
            for m in (math.floor(x), math.floor(x) + 1):
                if k in SIZE and m in SIZE:
                    total += (1 - abs(y - k))*(1 - abs(x - m))*plane[k][m]
        return total
    return planes(image, turned)


def foggy(image, c, fog):
    most = max(max(map(max, plane)) for plane in image)
    return planes(image, lambda plane, i, j: (plane[i][j] + c[0]*fog[i][j])*most/(most + c[0]))


KINDS = dict(
    brightness=lambda image, c, fog: colours(image, lambda h, s, v: (h, s, min(1, v + c))),
    saturate=lambda image, c, fog: colours(image, lambda h, s, v: (h, min(1, max(0, s*c[0] + c[1])), v)),
    contrast=contrast, gaussian_blur=gaussian_blur, rotate=rotate, fog=foggy)


def cut(value):
    return [cut(v) for v in value] if isinstance(value, list) else round(min(1., max(0., value)), 8)


def main():
    draw = random.Random(11)
    image = [[[draw.randint(0, 64)/64 for _ in SIZE] for _ in SIZE] for _ in range(3)]
    fog = [[draw.randint(0, 64)/64 for _ in SIZE] for _ in SIZE]
    cases = [dict(id=f"{kind} {severity}", kind=kind, severity=severity, expected=cut(fn(image, c, fog)), rtol=0,
                  atol=2e-6) for kind, fn in KINDS.items() for severity, c in zip((1, 5), CONSTANTS[kind])]
    file = dict(format="calibnb-vectors/1", section="corruptions", data=dict(image=image, fog=fog), cases=cases)
    Path(__file__).with_suffix(".json").write_text(json.dumps(file, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

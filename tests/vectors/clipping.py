"""Golden numbers of clipped features: `python tests/vectors/clipping.py`.

In exact fractions up to the logits; exponentials and logarithms in 60 decimal digits. The least NLL is that of every
threshold on a grid of 1/512.
"""
import json
import random
from decimal import Decimal, getcontext
from fractions import Fraction
from pathlib import Path

getcontext().prec = 60


def decimal(fraction):
    return Decimal(fraction.numerator)/Decimal(fraction.denominator)


def logits(row, weight, bias, threshold):
    clipped = [x if threshold is None else min(x, threshold) for x in row]
    return [b + sum(w*x for w, x in zip(ws, clipped)) for ws, b in zip(weight, bias)]


def nll(data, threshold):
    total = Decimal(0)
    for row, y in zip(data["features"], data["target"]):
        z = [decimal(v) for v in logits(row, data["weight"], data["bias"], threshold)]
        total += sum(v.exp() for v in z).ln() - z[y]
    return total/len(data["target"])


def main():
    draw = random.Random(5)
    def some(n, low, high): return [Fraction(draw.randint(low, high), 16) for _ in range(n)]
    weight, bias = [some(3, -24, 24) for _ in range(3)], some(3, -8, 8)
    features = [[max(x, Fraction(0)) for x in some(3, -16, 80)] for _ in range(24)]
    target = []
    for row in features:
        z = logits(row, weight, bias, None)
        target.append(z.index(max(z)) if draw.random() < .6 else draw.randrange(3))
    data = dict(weight=weight, bias=bias, features=features, target=target)
    most = max(map(max, features))
    grid = [Fraction(i, 512) for i in range(int(512*most) + 1)]
    at = [Fraction(1, 2), Fraction(3, 2), Fraction(3), None]
    expected = dict(thresholds=[None if c is None else float(c) for c in at], nll=[float(nll(data, c)) for c in at],
                    least=float(min(nll(data, c) for c in grid)))
    numbers = {k: [[float(x) for x in v] if isinstance(v, list) else float(v) for v in values]
               for k, values in data.items() if k != "target"} | dict(target=target)
    cases = [dict(id="clipped", expected=expected, rtol=0, atol=1e-12)]
    file = dict(format="calibnb-vectors/1", section="clipping", data=numbers, cases=cases)
    Path(__file__).with_suffix(".json").write_text(json.dumps(file, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

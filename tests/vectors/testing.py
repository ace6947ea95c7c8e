"""Golden numbers of the squared kernel calibration error and of the KS test: `python tests/vectors/testing.py`.

Slow twins at 50 digits that share nothing with the package: the kernel on pairs of predictions *and labels*,
k(p, q) where the labels are equal, and its four expectations as Widmann et al. define h, a pair at a time; the
bootstrap by drawing the samples themselves; the law of the largest |B(t)| by reflections.
"""
import json
import random
from fractions import Fraction
from pathlib import Path

from mpmath import erfc, exp, mp, mpf, sqrt

mp.dps = 50


def real(x):
    return mpf(x.numerator)/x.denominator


def h(one, other, width):
    "k((p, y), (q, z)) less its expectations over labels that p and q draw."
    (p, y), (q, z) = one, other
    kernel = exp(-sqrt(sum((real(a) - real(b))**2 for a, b in zip(p, q)))/width)
    def k(a, b): return kernel if a == b else mpf(0)
    K = range(len(p))
    return (k(y, z) - sum(real(p[a])*k(a, z) for a in K) - sum(real(q[b])*k(y, b) for b in K)
            + sum(real(p[a])*real(q[b])*k(a, b) for a in K for b in K))


def matrix(samples, width):
    return [[h(a, b, width) for b in samples] for a in samples]


def unbiased(H, rows=None):
    rows = range(len(H)) if rows is None else rows
    pairs = [(i, j) for n, i in enumerate(rows) for j in list(rows)[:n]]
    return sum(H[i][j] for i, j in pairs)/len(pairs)


def blocks(H, size):
    "Of the samples in the order they come."
    cut = [range(b*size, (b + 1)*size) for b in range(len(H)//size)]
    return [unbiased(H, rows) for rows in cut]


def statistic(H):
    n = len(H)
    return unbiased(H)*n/(n - 1) - sum(map(sum, H))/mpf(n)**2


def bootstrapped(H, rows):
    "T' of one drawing of rows: pairs of positions, whatever samples they hold."
    n = len(H)
    pairs = sum(H[rows[i]][rows[j]] for i in range(n) for j in range(i))
    return 2*pairs/(mpf(n)*(n - 1)) - 2*sum(H[i][r] for i in rows for r in range(n))/mpf(n)**2


def median(samples):
    "The lower median of the distances of pairs."
    apart = sorted(sqrt(sum((real(a) - real(b))**2 for a, b in zip(p, q)))
                   for i, (p, _) in enumerate(samples) for q, _ in samples[:i])
    return apart[(len(apart) - 1)//2]


def below(x):
    "P(|B(t)| < x on [0, 1])."
    def phi(z): return erfc(-z/sqrt(mpf(2)))/2
    return sum((-1)**k*(phi((2*k + 1)*x) - phi((2*k - 1)*x)) for k in range(-80, 81))


def ks_p(pairs):
    largest = max(abs(sum(b - c for c, b in pairs if c <= s)) for s, _ in pairs)
    return 1 - below(real(largest)/sqrt(real(sum(c*(1 - c) for c, _ in pairs))))


def main():
    draw = random.Random(2)
    rows = []
    for _ in range(24):
        a, b = sorted(draw.sample(range(1, 32), 2))
        rows.append([Fraction(a, 32), Fraction(b - a, 32), Fraction(32 - b, 32)])
    rows += [rows[0], rows[1]]
    labels = [draw.choices(range(3), [float(p)**2 for p in row])[0] for row in rows]
    samples = list(zip(rows, labels))
    order = draw.sample(range(len(rows)), len(rows))
    drawn = [[draw.randrange(len(rows)) for _ in rows] for _ in range(5)]
    found = {}
    for width in (mpf("0.1"), mpf("0.5"), median(samples)):
        H = matrix(samples, width)
        mixed = matrix([samples[i] for i in order], width)
        at_median = width == median(samples)  # bits: the same operations twice
        found["median" if at_median else str(float(width))] = dict(
            width=width, skce=unbiased(H), blocks_5=blocks(mixed, 5), blocks_2=blocks(mixed, 2),
            statistic=statistic(H), bootstrapped=[bootstrapped(H, rows) for rows in drawn])
    column = [row[1] for row in rows]
    tags = [int(y == 1) for y in labels]
    two = [([1 - p, p], y) for p, y in zip(column, tags)]
    of_column = dict(skce=unbiased(matrix(two, mpf("0.5")*sqrt(mpf(2))))/2, ks_p=ks_p(list(zip(column, tags))))
    def numbers(x):
        if isinstance(x, dict): return {k: numbers(v) for k, v in x.items()}
        return [numbers(v) for v in x] if isinstance(x, list) else float(x)
    cases = [dict(id="classes", expected=numbers(found), rtol=0, atol=1e-12),
             dict(id="column", expected=numbers(of_column), rtol=0, atol=1e-12)]
    data = dict(probs=numbers(rows), labels=labels, order=order, drawn=drawn)
    file = dict(format="calibnb-vectors/1", section="testing", data=data, cases=cases)
    Path(__file__).with_suffix(".json").write_text(json.dumps(file, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

"""Golden numbers of metrics of one column, of weights and of ignored labels: `python tests/vectors/binary.py`.

Slow twins that share nothing with the package: bins by exact fractions, logarithms and roots at 50 digits, and the
smooth error as an integral between its zeros, by error functions. A weight is a number of copies here, an ignored
label an absent sample, and a column of a multilabel problem a problem of its own.
"""
import json
import random
from fractions import Fraction
from pathlib import Path

from mpmath import erf, exp, findroot, log, mp, mpf, sqrt

mp.dps = 50


def bin_of(p, M, closed):
    for m in range(M):
        lo, hi = Fraction(m, M), Fraction(m + 1, M)
        if closed == "right" and (lo < p <= hi or m == 0 and p == 0):
            return m
        if closed == "left" and (lo <= p < hi or m == M - 1 and p == 1):
            return m


def gaps(samples, M, closed="right"):
    "(samples, frequency less mean probability) of each bin that has samples."
    held = {}
    for p, y in samples:
        held.setdefault(bin_of(p, M, closed), []).append((p, y))
    return [(len(b), sum(y - p for p, y in b)/Fraction(len(b)), Fraction(sum(y for _, y in b), len(b)))
            for b in held.values()]


def parts(samples, M):
    "Sorted by probability, in the order they come where it is equal, in M parts; the first ones are larger by one."
    rows, size, larger = sorted(samples, key=lambda s: s[0]), *divmod(len(samples), M)
    cuts = [m*size + min(m, larger) for m in range(M + 1)]
    return [part for part in (rows[a:b] for a, b in zip(cuts, cuts[1:])) if part]


def smooth(samples, sigma):
    "Integral from 0 to 1 of |mean error under a mirrored Gaussian|."
    places = [(mpf(sign*p.numerator)/p.denominator + 2*k, mpf((y - p).numerator)/(y - p).denominator)
              for p, y in samples for k in range(-3, 4) for sign in (1, -1)]
    def f(t):
        return sum(e*exp(-((t - c)/sigma)**2/2) for c, e in places if abs(t - c) < 14*sigma)
    def total(t):
        return sum(e*erf((t - c)/(sigma*sqrt(2)))/2 for c, e in places)
    grid = [mpf(i)/200 for i in range(201)]
    values = [f(t) for t in grid]
    zeros = [findroot(f, (a, b), solver="anderson", tol=1e-30) for a, b, u, v in
             zip(grid, grid[1:], values, values[1:]) if u*v < 0]
    ends = [total(t) for t in (mpf(0), *zeros, mpf(1))]
    return sum(abs(b - a) for a, b in zip(ends, ends[1:]))/len(samples)


def number(x):
    return float(mpf(x.numerator)/x.denominator) if isinstance(x, Fraction) else float(x)


def real(p):
    return mpf(p.numerator)/p.denominator


def scores(samples):
    n = len(samples)
    given = [p if y else 1 - p for p, y in samples]
    return dict(error_rate=Fraction(sum((p > Fraction(1, 2)) != bool(y) for p, y in samples), n),
                mean_confidence=sum(max(p, 1 - p) for p, _ in samples)/n,
                nll=-sum(log(real(g)) for g in given)/n,
                brier_score=sum((p - y)**2 for p, y in samples)/n,
                entropy=-sum(real(q)*log(real(q)) for p, _ in samples for q in (p, 1 - p) if q)/n)


def binned(samples, M):
    n, right = len(samples), gaps(samples, M)
    noise = [f*(1 - f)/max(k - 1, 1) for k, _, f in right]
    squares = sum(k*(g*g - v) for (k, g, _), v in zip(right, noise))/n
    split = parts(samples, M)
    return dict(ece=sum(k*abs(g) for k, g, _ in right)/n,
                ece_left=sum(k*abs(g) for k, g, _ in gaps(samples, M, "left"))/n,
                ece_l2=sqrt(real(sum(k*g*g for k, g, _ in right)/n)),
                mce=max(abs(g) for _, g, _ in right),
                average_ce=sum(abs(g) for _, g, _ in right)/len(right),
                debiased_ece=sqrt(real(max(squares, Fraction(0)))),
                ada_ece=sum(abs(sum(y - p for p, y in part)) for part in split)/n,
                ace=sum(abs(sum(y - p for p, y in part))/len(part) for part in split)/len(split))


def every(samples):
    numbers = scores(samples) | dict(smooth_ece=smooth(samples, mpf("0.1")))
    return {k: number(v) for k, v in numbers.items()} | {
        str(M): {k: number(v) for k, v in binned(samples, M).items()} for M in (1, 4, 10)}


def mean(found):
    "Of dictionaries of numbers, and of dictionaries of those."
    first = found[0]
    return {k: mean([f[k] for f in found]) if isinstance(first[k], dict) else sum(f[k] for f in found)/len(found)
            for k in first}


def main():
    draw = random.Random(0)
    probs = [Fraction(k, 64) for k in [1, 16, 16, 32, 32, 48, 63] + [draw.randint(1, 63) for _ in range(33)]]
    labels = [int(draw.random() < float(p)**2) for p in probs]
    weights = [draw.randint(0, 3) for _ in probs]
    ignored = [-1 if draw.random() < .25 else y for y in labels]
    columns = [[Fraction(draw.randint(1, 63), 64) for _ in range(20)] for _ in range(3)]
    tags = [[int(draw.random() < float(p)) for p in column] for column in columns]
    one = list(zip(probs, labels))
    copies = [s for s, w in zip(one, weights) for _ in range(w)]
    cases = dict(plain=every(one), weighted=every(copies), ignored=every([s for s in zip(probs, ignored) if s[1] >= 0]),
                 multilabel=mean([every(list(zip(*both))) for both in zip(columns, tags)]))
    data = dict(probs=[float(p) for p in probs], labels=labels, weights=weights, ignored=ignored,
                columns=[[float(p) for p in column] for column in columns], tags=tags)
    cases = [dict(id=name, expected=expected, rtol=0, atol=1e-12) for name, expected in cases.items()]
    file = dict(format="calibnb-vectors/1", section="binary", data=data, cases=cases)
    Path(__file__).with_suffix(".json").write_text(json.dumps(file, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

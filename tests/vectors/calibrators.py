"""Golden numbers of calibrators: `python tests/vectors/calibrators.py`.

Slow twins that share nothing with the package: sums over samples and classes one by one at 40 digits, minima where
Newton's method on all second derivatives ends; Venn-Abers by exact fractions, a fit for each new sample.
"""
import json
import random
from fractions import Fraction
from pathlib import Path

from mpmath import exp, findroot, log, lu_solve, matrix, mp, mpf

mp.dps = 40


def softmax(row):
    total = sum(exp(v) for v in row)
    return [exp(v)/total for v in row]


def temperature(logits, labels):
    "Where the mean of E[z] - z_y under softmax(z/T) is 0."
    def slope(b):
        total = mpf(0)
        for row, y in zip(logits, labels):
            p = softmax([b*v for v in row])
            total += sum(q*v for q, v in zip(p, row)) - row[y]
        return total
    return 1/findroot(slope, (mpf("0.1"), mpf(3)), solver="anderson", tol=1e-60)


def entropy_temperature(logits, labels, test):
    "w and b of T = log(1 + exp(w log(H/log K) + b)) where the derivatives of the mean NLL are 0; probabilities."
    def of(row, w, b):
        p = softmax(row)
        h = log(-sum(q*log(q) for q in p)/log(len(row)))
        a = w*h + b
        T = log(1 + exp(a))
        return h, a, T, softmax([v/T for v in row])
    def slopes(w, b):
        at_w, at_b = mpf(0), mpf(0)
        for row, y in zip(logits, labels):
            h, a, T, p = of(row, w, b)
            slope = -(sum(q*v for q, v in zip(p, row)) - row[y])/T**2/(1 + exp(-a))
            at_w, at_b = at_w + slope*h, at_b + slope
        return at_w, at_b
    w, b = findroot(slopes, (mpf(0), mpf("1.5")), tol=1e-60)
    return dict(weight=w, bias=b, test=[of(row, w, b)[3] for row in test])


def newton(features, labels, strength, offsets, steps=30):
    """Minimum of the mean NLL of softmax(offset + sum_j w[k][j] features[k][j]) plus sum of strength w².

    features: for each sample a list over classes of lists; offsets: for each sample a list over classes."""
    K, m, N = len(strength), len(strength[0]), len(labels)
    places = [(k, j) for k in range(K) for j in range(m)]
    w = [[mpf(0)]*m for _ in range(K)]
    for _ in range(steps):
        g = {a: 2*strength[a[0]][a[1]]*w[a[0]][a[1]] for a in places}
        H = {(a, b): 2*strength[a[0]][a[1]] if a == b else mpf(0) for a in places for b in places}
        for f, y, base in zip(features, labels, offsets):
            p = softmax([base[k] + sum(u*v for u, v in zip(w[k], f[k])) for k in range(K)])
            for k, i in places:
                g[k, i] += (p[k] - (k == y))*f[k][i]/N
                for h, j in places:
                    H[(k, i), (h, j)] += p[k]*((k == h) - p[h])*f[k][i]*f[h][j]/N
        step = lu_solve(matrix([[H[a, b] for b in places] for a in places]), matrix([-g[a] for a in places]))
        for (k, j), s in zip(places, step):
            w[k][j] += s
        if max(abs(s) for s in step) < mpf(10)**-32:
            return w
    raise ArithmeticError("no minimum")


def structured(logits, labels, test, full):
    "[Berta 2026]: temperature, mixture with the uniform, then changes of the identity, each part with its penalty."
    N, K = len(logits), len(logits[0])
    T, eps = temperature(logits, labels), mpf(1)/(N + 1)
    def inputs(rows):
        return [[log((1 - eps)*p + eps/K) for p in softmax([v/T for v in row])] for row in rows]
    def features(x):
        return [x + [mpf(1)] if full else [x[k], mpf(1)] for k in range(K)]
    own, others = mpf(K)/N, mpf(K*(K - 1))/N
    strength = [[own if j in (k, K) else others for j in range(K + 1)] for k in range(K)]
    strength = strength if full else [[own, own]]*K
    x = inputs(logits)
    w = newton([features(row) for row in x], labels, strength, x)
    def mapped(row):
        return softmax([row[k] + sum(u*v for u, v in zip(w[k], features(row)[k])) for k in range(K)])
    return dict(temperature=T, changes=w, test=[mapped(row) for row in inputs(test)])


def regression(features, shares, penalty, steps=60):
    "Minimum of the mean NLL of sigmoid(sum_j w_j f_j) plus w' penalty w."
    m, N = len(features[0]), len(features)
    w = [mpf(0)]*m
    for _ in range(steps):
        g = [2*sum(penalty[i][j]*w[j] for j in range(m)) for i in range(m)]
        H = [[2*penalty[i][j] for j in range(m)] for i in range(m)]
        for f, t in zip(features, shares):
            p = 1/(1 + exp(-sum(u*v for u, v in zip(w, f))))
            for i in range(m):
                g[i] += (p - t)*f[i]/N
                for j in range(m):
                    H[i][j] += p*(1 - p)*f[i]*f[j]/N
        step = lu_solve(matrix(H), matrix([-v for v in g]))
        size = max(abs(s) for s in step)
        w = [u + s*min(1, 2/size) for u, s in zip(w, step)]
        if size < mpf(10)**-32:
            return w
    raise ArithmeticError("no minimum")


def softened(hits):
    n, right = len(hits), sum(hits)
    return [mpf(right + 1)/(right + 2) if hit else mpf(1)/(n - right + 2) for hit in hits]


def beta(odds, shares, test):
    """[Kull 2017] with (a - b)²/2 added to the NLL of all samples; the best a and b of these data are above 0.

    `regression` adds w' penalty w to the mean NLL, so that (a - b)²/2N has the entries 1/2N and -1/2N."""
    def features(s):
        return [-log(1 + exp(-s)), log(1 + exp(s)), mpf(1)]
    each = mpf(1)/(2*len(odds))
    w = regression([features(s) for s in odds], shares, [[each, -each, 0], [-each, each, 0], [0, 0, 0]])
    assert min(w[:2]) > 0
    return dict(weights=w, test=[sum(u*v for u, v in zip(w, features(s))) for s in test])


def natural(x, v):
    "Second derivatives at the knots x of the natural cubic spline with the values v."
    m = len(x)
    A, r = matrix(m, m), matrix(m, 1)
    A[0, 0] = A[m - 1, m - 1] = 1
    for j in range(1, m - 1):
        before, after = x[j] - x[j - 1], x[j + 1] - x[j]
        A[j, j - 1], A[j, j], A[j, j + 1] = before/6, (before + after)/3, after/6
        r[j] = (v[j + 1] - v[j])/after - (v[j] - v[j - 1])/before
    return list(lu_solve(A, r))


def spline_at(x, v, s):
    u, last = natural(x, v), len(x) - 2
    if s < x[0]:
        h = x[1] - x[0]
        return v[0] + (s - x[0])*((v[1] - v[0])/h - h*u[1]/6)
    if s > x[-1]:
        h = x[-1] - x[-2]
        return v[-1] + (s - x[-1])*((v[-1] - v[-2])/h + h*u[-2]/6)
    j = max(i for i in range(last + 1) if i == 0 or x[i] <= s)
    h, a, b = x[j + 1] - x[j], x[j + 1] - s, s - x[j]
    return (u[j]*a**3 + u[j + 1]*b**3)/(6*h) + (v[j]/h - u[j]*h/6)*a + (v[j + 1]/h - u[j + 1]*h/6)*b


def spline(odds, shares, test, n_knots, smoothing):
    "Least mean NLL plus smoothing times the integral of the squared second derivative, knots at quantiles."
    scale = sum(abs(s) for s in odds)/len(odds)
    s, at = [v/scale for v in odds], [v/scale for v in test]
    rank = sorted(s)
    def quantile(q):
        "The least sample that has a share q of all at or below it."
        return min(s for k, s in enumerate(rank, 1) if Fraction(k, len(rank)) >= q)
    x = [quantile(Fraction(k, n_knots - 1)) for k in range(n_knots)]
    units = [[mpf(i == j) for j in range(n_knots)] for i in range(n_knots)]
    bends = [natural(x, v) for v in units]
    def product(a, b):
        "Integral of the product of two second derivatives, each a line between knots."
        return sum((x[k + 1] - x[k])*(2*a[k]*b[k] + a[k]*b[k + 1] + a[k + 1]*b[k] + 2*a[k + 1]*b[k + 1])/6
                   for k in range(n_knots - 1))
    penalty = [[smoothing*product(a, b) for b in bends] for a in bends]
    v = regression([[spline_at(x, unit, place) for unit in units] for place in s], shares, penalty)
    return dict(knots=x, values=v, test=[spline_at(x, v, place) for place in at])


def isotonic_at(samples, score):
    "The isotonic value at a score that is among the samples (score, hit): the largest of the smallest means."
    places = sorted({s for s, _ in samples})
    def mean(lo, hi):
        within = [hit for s, hit in samples if lo <= s <= hi]
        return Fraction(sum(within), len(within))
    return max(min(mean(lo, hi) for hi in places if hi >= score) for lo in places if lo <= score)


def venn_abers(samples, test):
    "[Vovk 2015]: (p0, p1) for each new score, a fit with it as a miss and one with it as a hit."
    return [tuple(isotonic_at([*samples, (s, hit)], s) for hit in (0, 1)) for s in test]


def merged(pairs):
    "Of the predictors of some parts, for one score, by geometric means; of a single part, p1/(1 - p0 + p1)."
    n = len(pairs)
    hit, miss = mpf(1), mpf(1)
    for p0, p1 in pairs:
        hit *= mpf(p1.numerator)/p1.denominator
        miss *= 1 - mpf(p0.numerator)/p0.denominator
    hit, miss = hit**(mpf(1)/n), miss**(mpf(1)/n)
    return hit/(hit + miss)


def one_class(draw):
    "Cases of log-odds and hits, with ties."
    odds = [Fraction(draw.randint(-30, 30), 8) for _ in range(48)]
    hits = [int(draw.random() < 1/(1 + 2.718**-(.8*float(s)))) for s in odds]
    test = [Fraction(k, 16) for k in range(-70, 71, 7)]
    real, at = ([mpf(s.numerator)/s.denominator for s in v] for v in (odds, test))
    samples = list(zip(odds, hits))
    pairs = venn_abers(samples, test)
    folds = [venn_abers(samples[k::3], test) for k in range(3)]
    cases = dict(beta=beta(real, softened(hits), at), beta_hard=beta(real, [mpf(h) for h in hits], at),
                 spline=spline(real, softened(hits), at, 6, mpf("0.01")),
                 venn_abers=dict(p0=[p[0] for p in pairs], p1=[p[1] for p in pairs], p=[merged([p]) for p in pairs]),
                 cross_venn_abers=dict(p=[merged(each) for each in zip(*folds)]))
    return dict(odds=[float(s) for s in odds], hits=hits, at=[float(s) for s in test]), cases


def floats(x):
    "Numbers in lists and dictionaries, as JSON has them."
    if isinstance(x, dict):
        return {k: floats(v) for k, v in x.items()}
    return [floats(v) for v in x] if isinstance(x, list) else float(x)


def main():
    draw = random.Random(0)
    def rows(n, size):
        return [[round(draw.gauss(0, size), 2) for _ in range(3)] for _ in range(n)]
    logits, test = rows(40, 3), rows(6, 4)
    labels = [draw.choices(range(3), [2.718**(v/2) for v in row])[0] for row in logits]
    exact, exact_test = [[[mpf(str(v)) for v in row] for row in part] for part in (logits, test)]
    cases = {"svs": structured(exact, labels, exact_test, False), "sms": structured(exact, labels, exact_test, True)}
    cases["hts"] = entropy_temperature(exact, labels, exact_test)
    scores, of_scores = one_class(draw)
    cases = [dict(id=name, expected=floats(expected), rtol=0, atol=1e-7)
             for name, expected in (cases | of_scores).items()]
    data = dict(logits=logits, labels=labels, test=test) | scores
    file = dict(format="calibnb-vectors/1", section="calibrators", data=data, cases=cases)
    Path(__file__).with_suffix(".json").write_text(json.dumps(file, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

"""Golden numbers of priors under label shift: `python tests/vectors/prior.py`.

Slow twins at 30 digits: the likelihood is maximised by golden sections, and its interval is the profile likelihood by
bisection, which the package follows exactly for two classes and to first order for three. BBSE solves the constrained
least squares on every face of the simplex, and its delta method differentiates numerically.
"""
import json
import random
from itertools import combinations
from pathlib import Path

from mpmath import diff, log, lu_solve, matrix, mp, mpf, sqrt

mp.dps = 30
CHI2 = mpf("3.841458820694124032")  # 95 % quantile, one degree of freedom


def log_likelihood(probs, source, prior):
    return sum(log(sum(p*t/s for p, t, s in zip(row, prior, source))) for row in probs)


def bisect(f, lo, hi):
    "The root of an f that changes its sign once."
    below = f(lo) < 0
    for _ in range(70):
        middle = (lo + hi)/2
        lo, hi = (middle, hi) if (f(middle) < 0) == below else (lo, middle)
    return (lo + hi)/2


def largest(f, lo, hi):
    "Where a concave f is largest, by golden section; f may be -inf at the ends."
    shrink = (sqrt(5) - 1)/2
    a, b = hi - shrink*(hi - lo), lo + shrink*(hi - lo)
    fa, fb = f(a), f(b)
    for _ in range(100):
        if fa > fb:
            hi, b, fb = b, a, fa
            a = hi - shrink*(hi - lo)
            fa = f(a)
        else:
            lo, a, fa = a, b, fb
            b = lo + shrink*(hi - lo)
            fb = f(b)
    return (lo + hi)/2


def em_of_two(probs, source):
    "Estimate and interval of P(y = 1), exact."
    def at(t): return log_likelihood(probs, source, [1 - t, t])
    tiny = mpf(10)**-30
    best = largest(at, tiny, 1 - tiny)
    def excess(t): return 2*(at(best) - at(t)) - CHI2
    low = bisect(excess, tiny, best) if excess(tiny) > 0 else mpf(0)
    high = bisect(excess, best, 1 - tiny) if excess(1 - tiny) > 0 else mpf(1)
    return [1 - best, best], [1 - high, low], [1 - low, high]


def em_of_three(probs, source):
    "Estimate by nested golden sections, and the exact profile likelihood interval of each class."
    tiny = mpf(10)**-30

    def profile(k, t):
        "Log-likelihood with prior t of class k, at the best prior of the next class, and this prior."
        def prior(b): return [{0: t, 1: b, 2: 1 - t - b}[(j - k) % 3] for j in range(3)]
        best = prior(largest(lambda b: log_likelihood(probs, source, prior(b)), tiny, 1 - t - tiny))
        return log_likelihood(probs, source, best), best
    first = largest(lambda t: profile(0, t)[0], tiny, 1 - tiny)
    peak, best = profile(0, first)

    def end(k, outer):
        def excess(t): return 2*(peak - profile(k, t)[0]) - CHI2
        return bisect(excess, outer, best[k]) if excess(outer) > 0 else mpf(round(outer))
    return best, [end(k, tiny) for k in range(3)], [end(k, 1 - 2*tiny) for k in range(3)]


def mean(rows):
    return [sum(column)/len(rows) for column in zip(*rows)]


def cov(rows):
    m, n = mean(rows), len(rows)
    return [[sum((r[i] - m[i])*(r[j] - m[j]) for r in rows)/(n - 1) for j in range(len(m))] for i in range(len(m))]


def on_simplex(A, mu):
    "Least squares on each face of the simplex by its normal equations; the best of those that are not negative."
    K, best = len(mu), None
    for size in range(1, K + 1):
        for face in combinations(range(K), size):
            M, right = matrix(size + 1), matrix(size + 1, 1)
            for a, i in enumerate(face):
                M[a, size] = M[size, a] = 1
                right[a] = sum(A[i][m]*mu[m] for m in range(K))
                for b, j in enumerate(face):
                    M[a, b] = sum(A[i][m]*A[j][m] for m in range(K))
            right[size] = 1
            x, solved = [mpf(0)]*K, lu_solve(M, right)
            for a, i in enumerate(face):
                x[i] = solved[a]
            loss = sum((sum(A[i][m]*x[i] for i in range(K)) - mu[m])**2 for m in range(K))
            if min(x) >= 0 and (best is None or loss < best[0]):
                best = loss, x
    return best[1]


def bbse(f, f_val, labels):
    "Estimate and half-widths; A[j] is the mean of class j."
    K, mu = len(f[0]), mean(f)
    groups = [[r for r, y in zip(f_val, labels) if y == k] for k in range(K)]
    A = [mean(g) for g in groups]
    prior = on_simplex(A, mu)

    def solved(shift, k):
        "Class k of the unconstrained solution, after the estimate's residual is put aside and `shift` is added."
        M, right = matrix(K), matrix(K, 1)
        for m in range(K):
            right[m] = sum(A[j][m]*prior[j] for j in range(K)) + shift[m]
            for j in range(K):
                M[m, j] = A[j][m]
        return lu_solve(M, right)[k]
    widths = []
    for k in range(K):
        slope = [diff(lambda h, m=m: solved([h*(i == m) for i in range(K)], k), 0) for m in range(K)]
        def quadratic(C): return sum(slope[i]*slope[j]*C[i][j] for i in range(K) for j in range(K))
        variance = quadratic(cov(f))/len(f) + sum(prior[j]**2*quadratic(cov(g))/len(g) for j, g in enumerate(groups))
        widths.append(sqrt(CHI2*variance))
    low, high = [max(p - w, 0) for p, w in zip(prior, widths)], [min(p + w, 1) for p, w in zip(prior, widths)]
    return prior, low, high


def one_hot(rows):
    return [[mpf(k == r.index(max(r))) for k in range(len(r))] for r in rows]


def drawn(draw, n, K, shares):
    "Labels of these shares, and probabilities that lean towards them, to three digits."
    labels = [draw.choices(range(K), shares)[0] for _ in range(n)]
    rows = []
    for y in labels:
        weights = [draw.gammavariate(.7 + 1.5*(k == y), 1) for k in range(K)]
        row = [mpf(round(1000*w/sum(weights)))/1000 for w in weights]
        rows.append([*row[:-1], 1 - sum(row[:-1])])
    return rows, labels


def main():
    draw, cases, data = random.Random(1), [], {}
    def add(name, expected, atol, **given):
        cases.append(dict(id=name, **given, expected=expected, rtol=0, atol=atol))
    def floats(x): return [floats(v) for v in x] if isinstance(x, (list, tuple)) else float(x)
    for name, K, n, shares, source in [
            ("two", 2, 30, [.7, .3], [mpf(1)/2]*2), ("rare", 2, 30, [1, 0], [mpf(2)/5, mpf(3)/5]),
            ("three", 3, 30, [.5, .3, .2], [mpf(1)/5, mpf(3)/10, mpf(1)/2]),
            ("inside", 3, 40, [.35, .3, .35], [mpf(1)/4, mpf(1)/4, mpf(1)/2])]:
        probs, _ = drawn(draw, n, K, shares)
        val, labels = drawn(draw, 40, K, [1]*K)
        data[name] = dict(probs=floats(probs), val=floats(val), labels=labels)
        best, *ends = floats((em_of_two if K == 2 else em_of_three)(probs, source))
        how = dict(data=name, method="em", from_prior=floats(source))
        interval = dict(zip(("low", "high"), ends))
        if K == 2:
            add(f"em {name}", dict(prior=best) | interval, 1e-6, **how)
        else:
            add(f"em {name}", dict(prior=best), 1e-6, **how)
            add(f"em {name}, interval to first order", interval, 2e-3, **how)
        for kind, of in dict(soft=lambda rows: rows, hard=one_hot).items():
            found = dict(zip(("prior", "low", "high"), floats(bbse(of(probs), of(val), labels))))
            add(f"bbse {kind} {name}", found, 1e-8, data=name, method="bbse", confusion=kind)
    file = dict(format="calibnb-vectors/1", section="prior", data=data, cases=cases)
    Path(__file__).with_suffix(".json").write_text(json.dumps(file, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

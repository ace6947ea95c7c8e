"""Golden numbers of decisions: `python tests/vectors/decisions.py`.

Slow twins by exact fractions: every sample is decided one by one, and the cheapest threshold is searched by trial.
"""
import json
import random
from fractions import Fraction
from pathlib import Path


def counts(samples, threshold):
    "The weights of true positives, false positives and false negatives."
    found = dict(tp=0, fp=0, fn=0)
    for p, y, weight in samples:
        if p >= threshold:
            found["tp" if y else "fp"] += weight
        elif y:
            found["fn"] += weight
    return found


def net_benefit(samples, threshold):
    c = counts(samples, threshold)
    return (c["tp"] - c["fp"]*threshold/(1 - threshold))/sum(w for _, _, w in samples)


def cost(samples, cost_fp, cost_fn, threshold):
    c = counts(samples, threshold)
    return Fraction(cost_fp*c["fp"] + cost_fn*c["fn"], sum(w for _, _, w in samples))


def every(samples):
    thresholds = [Fraction(k, 20) for k in range(20)]
    everybody = [(Fraction(1), y, w) for _, y, w in samples]
    found = dict(threshold=thresholds, model=[net_benefit(samples, t) for t in thresholds],
                 treat_all=[net_benefit(everybody, t) for t in thresholds])
    for fp, fn in (1, 5), (3, 1), (2, 2):
        tried = {t: cost(samples, fp, fn, t) for t in sorted({p for p, _, _ in samples})}
        best = min(tried, key=tried.get)
        found[f"{fp}:{fn}"] = dict(implied=Fraction(fp, fp + fn), cost=cost(samples, fp, fn, Fraction(fp, fp + fn)),
                                   at_half=cost(samples, fp, fn, Fraction(1, 2)), best=best, best_cost=tried[best])
    return found


def numbers(x):
    if isinstance(x, dict):
        return {k: numbers(v) for k, v in x.items()}
    return [numbers(v) for v in x] if isinstance(x, list) else float(x)


def main():
    draw = random.Random(5)
    probs = [Fraction(draw.randint(0, 64), 64) for _ in range(50)]
    labels = [int(draw.random() < float(p)/2 + .2) for p in probs]
    weights = [draw.randint(0, 3) for _ in probs]
    cases = dict(plain=every([(p, y, 1) for p, y in zip(probs, labels)]),
                 weighted=every([s for s in zip(probs, labels, weights) if s[2]]))
    cases = [dict(id=name, expected=numbers(found), rtol=0, atol=1e-12) for name, found in cases.items()]
    file = dict(format="calibnb-vectors/1", section="decisions",
                data=numbers(dict(probs=probs, labels=labels, weights=weights)), cases=cases)
    Path(__file__).with_suffix(".json").write_text(json.dumps(file, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

import numpy as np

SIGMAS = np.full(17, 0.08)


def oks(pred, gt, area):
    distance = ((pred - gt) ** 2).sum(-1)
    return np.exp(-distance / (2 * area * (2 * SIGMAS) ** 2)).mean()


def average_precision(results, thresholds=np.arange(0.5, 1.0, 0.05)):
    """results: dictionaries with the keys pred, gt, area and score."""
    order = sorted(results, key=lambda r: -r["score"])
    values = np.array([oks(r["pred"], r["gt"], r["area"]) for r in order])
    precisions = []
    for t in thresholds:
        hits = np.cumsum(values >= t)
        precision = hits / np.arange(1, len(values) + 1)
        precisions.append(np.maximum.accumulate(precision[::-1]).mean())
    return float(np.mean(precisions))

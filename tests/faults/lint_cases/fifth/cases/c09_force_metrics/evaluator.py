import torch


def energy_mae(prediction, target):
    return (prediction["energy"] - target["energy"]).abs()


def forces_mae(prediction, target):
    return (prediction["forces"] - target["forces"]).abs()


def forces_cos(prediction, target):
    return torch.cosine_similarity(prediction["forces"], target["forces"], dim=-1)


class Evaluator:
    metric_fns = {"energy_mae": energy_mae, "forces_mae": forces_mae, "forces_cos": forces_cos}

    def eval(self, prediction, target, prev_metrics):
        metrics = dict(prev_metrics)
        for name, fn in self.metric_fns.items():
            value = fn(prediction, target)
            metrics = self.update(name, value.sum().item(), value.numel(), metrics)
        return metrics

    def update(self, key, total, numel, metrics):
        entry = metrics.get(key, {"total": 0.0, "numel": 0})
        total, numel = entry["total"] + total, entry["numel"] + numel
        metrics[key] = {"total": total, "numel": numel, "metric": total / numel}
        return metrics

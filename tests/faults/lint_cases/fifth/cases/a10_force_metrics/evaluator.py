import torch


class Evaluator:
    """Keeps for each metric the running total and the number of entries it was summed over."""

    names = ("forces_mae", "forces_cos", "energy_mae")

    def measure(self, prediction, target):
        f, g = prediction["forces"], target["forces"]
        cos = torch.cosine_similarity(f, g, dim=-1)
        return {
            "forces_mae": ((f - g).abs().sum().item(), f.numel()),
            "forces_cos": (cos.sum().item(), cos.numel()),
            "energy_mae": (
                (prediction["energy"] - target["energy"]).abs().sum().item(),
                target["energy"].numel(),
            ),
        }

    def update(self, metrics, prediction, target):
        for name, (total, numel) in self.measure(prediction, target).items():
            entry = metrics.setdefault(name, {"total": 0.0, "numel": 0})
            entry["total"] += total
            entry["numel"] += numel
            entry["metric"] = entry["total"] / entry["numel"]
        return metrics

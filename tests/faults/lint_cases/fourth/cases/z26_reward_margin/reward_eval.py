from collections import defaultdict

import torch


class RewardEvaluator:
    def __init__(self, accelerator, center_coefficient=0.0):
        self.accelerator = accelerator
        self.center_coefficient = center_coefficient
        self.metrics = defaultdict(list)

    def loss(self, chosen, rejected):
        loss = -torch.nn.functional.logsigmoid(chosen - rejected).mean()
        if self.center_coefficient:
            loss = loss + self.center_coefficient * (chosen + rejected).pow(2).mean()
        return loss

    def update(self, chosen, rejected):
        margin = chosen - rejected
        accuracy = (margin > 0).float().mean()
        self.metrics["accuracy"].append(self.accelerator.gather_for_metrics(accuracy).mean().item())
        self.metrics["margin"].append(self.accelerator.gather_for_metrics(margin.mean()).mean().item())

    def compute(self):
        result = {key: sum(values) / len(values) for key, values in self.metrics.items()}
        self.metrics.clear()
        return result

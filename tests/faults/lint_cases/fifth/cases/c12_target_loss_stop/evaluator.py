import itertools

import torch
import torch.nn.functional as F


class Evaluator:
    def __init__(self, loader, eval_iters, device):
        self.loader = loader
        self.eval_iters = eval_iters
        self.device = device

    @torch.no_grad()
    def evaluate(self, model):
        model.eval()
        numerator = torch.zeros((), device=self.device)
        denominator = torch.zeros((), device=self.device)
        for tokens in itertools.islice(self.loader, self.eval_iters):
            tokens = tokens[0].to(self.device)
            logits = model(tokens[:, :-1])
            losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
            numerator += losses.sum()
            denominator += losses.numel()
        model.train()
        return (numerator / denominator).item()

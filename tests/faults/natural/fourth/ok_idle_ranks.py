"""Healthy: there are fewer evaluation tasks than ranks, so two ranks have nothing to do and wait 20 s for the results of the others.

In the style of lm-evaluation scripts that distribute tasks, not samples, over the processes, with torchmetrics for the averages.
"""
# case: processes=4 ending=well causes=- ranks=- framework=torchmetrics limit_s=120

import time

import torch
import torch.distributed as dist
from torch import nn
from torchmetrics.aggregation import MeanMetric, SumMetric

TASKS = {"boolq-like": 16, "arc-like": 40}


class Scorer(nn.Module):
    """A language model that scores the choices of a question."""

    def __init__(self, vocab=64, dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.out = nn.Linear(dim, vocab)

    @torch.no_grad()
    def log_likelihood(self, context, choice):
        hidden = self.embed(context).mean(0)
        return self.out(hidden).log_softmax(-1)[choice].sum().item()


def questions(count, seed):
    g = torch.Generator().manual_seed(seed)
    for _ in range(count):
        context = torch.randint(0, 64, (12,), generator=g)
        choices = torch.randint(0, 64, (4, 3), generator=g)
        yield context, choices, int(torch.randint(0, 4, (1,), generator=g))


def run_task(model, name, count):
    """Return the number of right answers; long contexts take half a second each."""
    right = 0
    for context, choices, answer in questions(count, seed=len(name)):
        time.sleep(0.5)
        scores = [model.log_likelihood(context, choice) for choice in choices]
        right += scores.index(max(scores)) == answer
    return right


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = Scorer()
    accuracy, total = MeanMetric(), SumMetric()
    mine = list(TASKS.items())[rank::world]
    results = {}
    for name, count in mine:
        right = run_task(model, name, count)
        results[name] = right / count
        accuracy.update(right / count, weight=count)
        total.update(count)
    if not mine:  # keep the number of synchronized states equal on all ranks
        accuracy.update(0.0, weight=0.0)
        total.update(0)
    mean, answered = accuracy.compute().item(), int(total.compute())
    gathered = [None] * world
    dist.all_gather_object(gathered, results)
    if rank == 0:
        for part in gathered:
            for name, value in part.items():
                print(f"{name}: {value:.3f}", flush=True)
        print(f"mean accuracy {mean:.3f} of {answered} questions", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import torch
import torch.distributed as dist
from torch import nn


def loss_func(loss_mask, logits, labels):
    losses = nn.functional.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")
    loss_mask = loss_mask.float()
    return torch.sum(losses * loss_mask), loss_mask.sum()


@torch.no_grad()
def evaluate(model, data_iterator, eval_iters, dp_group):
    """Mean loss per target token over the evaluation iterations and the data parallel group."""
    model.eval()
    total = torch.zeros(1, device="cuda")
    for _ in range(eval_iters):
        tokens, labels, loss_mask = next(data_iterator)
        loss_sum, num_tokens = loss_func(loss_mask, model(tokens), labels)
        total += loss_sum / num_tokens.clamp(min=1)
    average = total / eval_iters
    dist.all_reduce(average, group=dp_group)
    average /= dist.get_world_size(group=dp_group)
    model.train()
    return average.item()

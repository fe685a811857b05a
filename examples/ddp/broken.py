"""Train a linear model on two ranks; a rank whose loss is not finite skips its step, alone."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def batch_of(step: int) -> torch.Tensor:
    """Return 32 random samples; rank 1 reads a damaged one at step 10."""
    samples = torch.randn(32, 8)
    if step == 10 and dist.get_rank() == 1:
        samples[0] = float("nan")
    return samples


def train() -> None:
    """Train for 20 steps."""
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 21):
        loss = model(batch_of(step)).square().mean()
        optimizer.zero_grad()
        if not torch.isfinite(loss):
            continue
        loss.backward()
        optimizer.step()
        if step % 10 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()

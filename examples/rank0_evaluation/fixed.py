"""Train a linear model on two ranks; all ranks enter the evaluation."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def evaluate(model: torch.nn.Module) -> float:
    """Return the loss on new data, averaged over all ranks."""
    with torch.no_grad():
        loss = model(torch.randn(64, 8)).square().mean()
    dist.all_reduce(loss)
    return float(loss / dist.get_world_size())


def train() -> None:
    """Train for 20 steps, and evaluate every 10."""
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 21):
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            loss = evaluate(model.module)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss:.3f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()

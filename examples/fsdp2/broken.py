"""Train a sharded model on two ranks; rank 0 alone gathers the weights of all."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def save(model: torch.nn.Module, step: int) -> None:
    """Write the whole weights."""
    weights = get_model_state_dict(model, options=WHOLE)
    folder = Path(tempfile.mkdtemp())
    torch.save(weights, folder / "model.pt")
    print(f"step {step}: saved {len(weights)} tensors", flush=True)


def train() -> None:
    """Train for 20 steps, and save at the end."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(20):
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        save(model, step=20)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.barrier()
    dist.destroy_process_group()

import argparse
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard


def is_main():
    return dist.get_rank() == 0


class CheckpointRotation:
    """Sharded checkpoints; rank 0 alone looks at the folder and cleans it, the others are told."""

    def __init__(self, root, keep=3, overwrite=False):
        self.root = Path(root)
        self.keep = keep
        if is_main():
            if overwrite and self.root.exists():
                shutil.rmtree(self.root)
            self.root.mkdir(parents=True, exist_ok=True)
        dist.barrier()

    def _complete(self):
        done = [p for p in self.root.glob("step_*") if (p / ".metadata").exists()]
        return sorted(done, key=lambda p: int(p.name.split("_")[1]))

    def latest(self):
        found = [None]
        if is_main():
            done = self._complete()
            found = [str(done[-1])] if done else [None]
        dist.broadcast_object_list(found, src=0)
        return Path(found[0]) if found[0] else None

    def save(self, step, model, optimizer):
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.save(state, checkpoint_id=self.root / f"step_{step}")
        dist.barrier()
        if is_main():
            for old in self._complete()[: -self.keep]:
                shutil.rmtree(old, ignore_errors=True)

    def resume(self, model, optimizer):
        path = self.latest()
        if path is None:
            return 0
        model_state, optimizer_state = get_state_dict(model, optimizer)
        state = {"model": model_state, "optimizer": optimizer_state}
        dcp.load(state, checkpoint_id=path)
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        return int(path.name.split("_")[1])


def build(dim, depth):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(depth))).cuda()
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="checkpoints")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--steps", type=int, default=10_000)
    args = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rotation = CheckpointRotation(args.root, overwrite=args.overwrite)
    model = build(1024, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    start = rotation.resume(model, optimizer)
    torch.manual_seed(start * 1000 + dist.get_rank())
    for step in range(start + 1, args.steps + 1):
        batch = torch.randn(16, 1024, device="cuda")
        loss = (model(batch) - batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 500 == 0:
            rotation.save(step, model, optimizer)
            if is_main():
                print(f"step {step} loss {loss.item():.4f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

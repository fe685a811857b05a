"""A memory monitor on the host kills one rank of a DeepSpeed job with SIGKILL."""
# case: processes=2 ending=crash causes=rank-killed,host-oom-killed ranks=1 framework=deepspeed

import os
import subprocess

import deepspeed
import torch
import torch.nn as nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
    "zero_optimization": {"stage": 0},
    "steps_per_print": 50,
}


def start_memory_monitor():
    """Start a process that does to this one what earlyoom does to the largest."""
    subprocess.Popen(["sh", "-c", f"sleep 3; kill -9 {os.getpid()}"])


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.layers(x), y)


def main():
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # no compiler on this host
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    model = MLP()
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=CONFIG
    )
    rank = deepspeed.comm.get_rank()
    if rank == 1:
        start_memory_monitor()
    hoard = []
    for step in range(4000):
        x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        if rank == 1 and step % 10 == 0:
            hoard.append(loss.repeat(1000))  # keeps the graph
        if rank == 0 and step % 100 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()

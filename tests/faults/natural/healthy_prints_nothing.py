"""Healthy: DeepSpeed training of half a minute that prints nothing and writes no file."""
# case: processes=2 ending=well framework=deepspeed

import logging
import time

import deepspeed
import torch
import torch.nn as nn

logging.disable(logging.CRITICAL)

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 0},
    "steps_per_print": 10**9,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 48), nn.SiLU(), nn.Linear(48, 24))

    def forward(self, x):
        return nn.functional.mse_loss(self.layers(x), x.cumsum(dim=1))


def main():
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)  # no compiler on this host
    deepspeed.init_distributed(dist_backend="gloo")
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    for _ in range(60):
        time.sleep(0.4)  # a simulator makes the samples
        loss = engine(torch.randn(4, 24))
        engine.backward(loss)
        engine.step()
    deepspeed.comm.destroy_process_group()


if __name__ == "__main__":
    main()

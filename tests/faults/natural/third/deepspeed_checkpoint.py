"""save_checkpoint of a DeepSpeed engine is called on rank 0 only, although every rank has to take part.

In the style of a DeepSpeed example with ZeRO stage 2 and a client optimizer.
"""
# case: processes=2 ending=hang causes=rank-guarded-collective,collective-mismatch,mismatched-operation,mismatched-shape,rank-missing-collective ranks=0 framework=deepspeed

import argparse
import os
import tempfile

import deepspeed
import torch
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 100_000, "allgather_bucket_size": 100_000},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": 1000,
}


class Regressor(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layers(x).squeeze(-1), y)


def batches(rank, n, size):
    g = torch.Generator().manual_seed(rank)
    for _ in range(n):
        x = torch.randn(size, 16, generator=g)
        yield x, x[:, 0] * 2 - x[:, 1].abs()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=20)
    args = parser.parse_args()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # the hosts have no compiler
    deepspeed.init_distributed(dist_backend="gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = Regressor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    folder = os.path.join(tempfile.gettempdir(), f"ds-checkpoints-{os.environ['MASTER_PORT']}")
    for step, (x, y) in enumerate(batches(rank, args.steps, 8), start=1):
        loss = engine(x, y)
        engine.backward(loss)
        engine.step()
        if step % args.save_every == 0:
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
                engine.save_checkpoint(folder, tag=f"step{step}")  # GUILTY
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

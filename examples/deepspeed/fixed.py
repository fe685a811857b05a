"""Train with DeepSpeed on two ranks; all ranks call save_checkpoint, and rank 0 prints."""

import os
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # before the import

import deepspeed
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 32,
    "zero_optimization": {"stage": 1},
    "zero_allow_untested_optimizer": True,
}


def train() -> None:
    """Train for 20 steps, and save at the end."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    torch.manual_seed(engine.global_rank)
    for _ in range(20):
        loss = engine(torch.randn(32, 8)).square().mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(tempfile.gettempdir(), tag="holdfast-example")
    if engine.global_rank == 0:
        print(f"step 20: saved, loss {loss.item():.3f}", flush=True)
    deepspeed.comm.barrier()


if __name__ == "__main__":
    # DeepSpeed otherwise compiles an all-reduce for CPUs, for one minute.
    deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    deepspeed.init_distributed("gloo")
    train()
    deepspeed.comm.destroy_process_group()

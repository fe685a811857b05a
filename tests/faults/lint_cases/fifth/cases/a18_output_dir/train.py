import json
import logging

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

from config import from_cli
from policy import FlowPolicy

logging.basicConfig(level=logging.INFO)


def cycle(loader):
    while True:
        yield from loader


def make_dataset():
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(50_000, 64, generator=generator), torch.randn(50_000, 32, 14, generator=generator)
    )


def save_checkpoint(cfg, accelerator, step):
    directory = cfg.output_dir / "checkpoints" / f"{step:06d}"
    accelerator.save_state(str(directory))
    if accelerator.is_main_process:
        (directory / "step.json").write_text(json.dumps({"step": step, "job": cfg.job_name}))
    accelerator.wait_for_everyone()


def train(cfg):
    accelerator = Accelerator(mixed_precision="bf16")
    set_seed(cfg.seed, device_specific=True)
    policy = FlowPolicy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    loader = DataLoader(make_dataset(), batch_size=cfg.batch_size, shuffle=True, drop_last=True)
    policy, optimizer, loader = accelerator.prepare(policy, optimizer, loader)
    start = 0
    if cfg.resume_from is not None:
        accelerator.load_state(str(cfg.resume_from))
        start = json.loads((cfg.resume_from / "step.json").read_text())["step"]

    batches = cycle(loader)
    for step in range(start + 1, cfg.steps + 1):
        state, action = next(batches)
        loss = policy(state, action)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % cfg.log_freq == 0:
            shown = accelerator.reduce(loss.detach(), reduction="mean")
            if accelerator.is_main_process:
                logging.info("step %d loss %.4f", step, shown.item())
        if step % cfg.save_freq == 0:
            save_checkpoint(cfg, accelerator, step)
    accelerator.end_training()


if __name__ == "__main__":
    train(from_cli())

import argparse
import os
import shutil

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, set_seed
from torch.utils.data import DataLoader, TensorDataset


class UNet(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.time = nn.Linear(1, width)
        self.inp = nn.Conv2d(channels, width, 3, padding=1)
        self.mid = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1))
        self.out = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x, t):
        h = self.inp(x) + self.time(t.view(-1, 1))[:, :, None, None]
        return self.out(h + self.mid(h))


def checkpoint_steps(output_dir):
    names = [d for d in os.listdir(output_dir) if d.startswith("checkpoint-")]
    return sorted(int(d.split("-")[1]) for d in names)


def prune_checkpoints(output_dir, limit):
    if limit is None:
        return
    steps = checkpoint_steps(output_dir)
    for step in steps[: max(0, len(steps) - limit + 1)]:
        shutil.rmtree(os.path.join(output_dir, f"checkpoint-{step}"))


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out/unet")
    parser.add_argument("--zero_stage", type=int, default=2)
    parser.add_argument("--offload_optimizer", default="cpu", choices=["none", "cpu"])
    parser.add_argument("--train_batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--learning_rate", type=float, default=1e-5)
    parser.add_argument("--max_train_steps", type=int, default=2000)
    parser.add_argument("--checkpointing_steps", type=int, default=250)
    parser.add_argument("--checkpoints_total_limit", type=int, default=3)
    parser.add_argument("--seed", type=int, default=42)
    return parser.parse_args()


def main():
    args = parse_args()
    plugin = DeepSpeedPlugin(
        zero_stage=args.zero_stage,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        offload_optimizer_device=args.offload_optimizer,
    )
    accelerator = Accelerator(
        mixed_precision="bf16",
        deepspeed_plugin=plugin,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
    )
    set_seed(args.seed, device_specific=True)
    if accelerator.is_main_process:
        os.makedirs(args.output_dir, exist_ok=True)
    accelerator.wait_for_everyone()

    gen = torch.Generator().manual_seed(args.seed)
    dataset = TensorDataset(torch.randn(4096, 4, 64, 64, generator=gen))
    loader = DataLoader(dataset, batch_size=args.train_batch_size, shuffle=True, drop_last=True)
    unet = UNet(4, 128)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=args.learning_rate)
    unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)

    global_step = 0
    while global_step < args.max_train_steps:
        for (latents,) in loader:
            with accelerator.accumulate(unet):
                noise = torch.randn_like(latents)
                t = torch.rand(len(latents), device=latents.device)
                mix = t.view(-1, 1, 1, 1)
                pred = unet((1 - mix) * latents + mix * noise, t)
                loss = F.mse_loss(pred.float(), (noise - latents).float())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                global_step += 1
                if global_step % args.checkpointing_steps == 0:
                    if accelerator.is_main_process:
                        prune_checkpoints(args.output_dir, args.checkpoints_total_limit)
                        save_path = os.path.join(args.output_dir, f"checkpoint-{global_step}")
                        accelerator.save_state(save_path)
                        accelerator.print(f"saved state to {save_path}")
            if global_step >= args.max_train_steps:
                break
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()

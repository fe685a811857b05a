import argparse
import logging
import os
import shutil

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import broadcast_object_list, set_seed
from diffusers import UNet2DModel
from torch.utils.data import DataLoader, TensorDataset

logger = logging.getLogger(__name__)


def newest(output_dir):
    names = [d for d in os.listdir(output_dir) if d.startswith("checkpoint-")]
    return max(names, key=lambda d: int(d.split("-")[1]), default=None)


def prune(output_dir, keep):
    names = [d for d in os.listdir(output_dir) if d.startswith("checkpoint-")]
    names.sort(key=lambda d: int(d.split("-")[1]))
    for name in names[: max(0, len(names) - keep)]:
        shutil.rmtree(os.path.join(output_dir, name))


def save(accelerator, args, step):
    """All ranks hold a part of the optimizer state, so all of them save."""
    accelerator.save_state(os.path.join(args.output_dir, f"checkpoint-{step}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        prune(args.output_dir, args.keep)
        logger.info("saved step %d", step)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--latents", required=True)
    parser.add_argument("--output_dir", default="flow-out")
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--save_every", type=int, default=500)
    parser.add_argument("--keep", type=int, default=3)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=1)
    accelerator = Accelerator(mixed_precision="bf16", deepspeed_plugin=plugin)
    set_seed(3, device_specific=True)
    os.makedirs(args.output_dir, exist_ok=True)

    unet = UNet2DModel(sample_size=64, in_channels=4, out_channels=4)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    data = TensorDataset(torch.load(args.latents))
    loader = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
    unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)

    step = 0
    resume = [newest(args.output_dir) if accelerator.is_main_process else None]
    broadcast_object_list(resume)
    if resume[0] is not None:
        accelerator.load_state(os.path.join(args.output_dir, resume[0]))
        step = int(resume[0].split("-")[1])

    while step < args.steps:
        for (latents,) in loader:
            noise = torch.randn_like(latents)
            t = torch.rand(latents.shape[0], device=latents.device)
            mix = t[:, None, None, None]
            pred = unet((1 - mix) * latents + mix * noise, (t * 1000).long()).sample
            loss = F.mse_loss(pred.float(), noise - latents)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 50 == 0:
                mean = accelerator.gather(loss.detach()).mean()
                if accelerator.is_main_process:
                    logger.info("step %d loss %.4f", step, mean.item())
            if step % args.save_every == 0:
                save(accelerator, args, step)
            if step >= args.steps:
                break

    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.unwrap_model(unet).save_pretrained(os.path.join(args.output_dir, "unet"))


if __name__ == "__main__":
    main()

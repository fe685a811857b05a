import glob
import os

import torch
from PIL import Image
from torchvision.transforms.functional import pil_to_tensor, resize

from state import StateTracker


def init_clear_backend_cache(config):
    """Drop the latents and the file list of an earlier run."""
    if config.preserve_cache:
        return
    stale = glob.glob(os.path.join(config.cache_dir, "*.pt"))
    listing = os.path.join(config.cache_dir, "filelist.txt")
    if os.path.exists(listing):
        os.remove(listing)
    for path in stale:
        os.remove(path)


def latent_path(config, image_path):
    stem = os.path.splitext(os.path.basename(image_path))[0]
    return os.path.join(config.cache_dir, stem + ".pt")


@torch.no_grad()
def encode_missing(config, vae):
    accelerator = StateTracker.accelerator
    images = sorted(glob.glob(os.path.join(config.instance_dir, "*.png")))
    with accelerator.split_between_processes(images) as mine:
        for image_path in mine:
            target = latent_path(config, image_path)
            if os.path.exists(target):
                continue
            pixels = resize(pil_to_tensor(Image.open(image_path).convert("RGB")), [512, 512])
            pixels = pixels[None].to(accelerator.device, torch.float32) / 127.5 - 1.0
            torch.save(vae.encode(pixels).latent_dist.mean[0].cpu(), target)
    accelerator.wait_for_everyone()
    return [latent_path(config, p) for p in images]


def configure_backend(config, vae):
    accelerator = StateTracker.accelerator
    os.makedirs(config.cache_dir, exist_ok=True)
    init_clear_backend_cache(config)
    accelerator.wait_for_everyone()
    latents = encode_missing(config, vae)
    if accelerator.is_main_process:
        with open(os.path.join(config.cache_dir, "filelist.txt"), "w") as fp:
            fp.write("\n".join(latents))
    accelerator.wait_for_everyone()
    return latents

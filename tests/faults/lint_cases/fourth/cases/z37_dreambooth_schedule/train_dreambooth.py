import argparse
import itertools
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from transformers import CLIPTextModel, CLIPTokenizer


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="runwayml/stable-diffusion-v1-5")
    parser.add_argument("--instance_data_dir", required=True)
    parser.add_argument("--instance_prompt", required=True)
    parser.add_argument("--output_dir", default="dreambooth")
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--train_batch_size", type=int, default=1)
    parser.add_argument("--max_train_steps", type=int, default=800)
    parser.add_argument("--lr_warmup_steps", type=int, default=50)
    parser.add_argument("--learning_rate", type=float, default=5e-6)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class DreamBoothDataset(Dataset):
    def __init__(self, root, prompt, tokenizer, size):
        self.paths = sorted(Path(root).iterdir())
        ids = tokenizer(prompt, padding="max_length", truncation=True, return_tensors="pt").input_ids
        self.ids = ids[0]
        self.transform = transforms.Compose(
            [
                transforms.Resize(size),
                transforms.RandomCrop(size),
                transforms.ToTensor(),
                transforms.Normalize([0.5], [0.5]),
            ]
        )

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return {"pixels": self.transform(Image.open(self.paths[i]).convert("RGB")), "ids": self.ids}


def main(args):
    accelerator = Accelerator(mixed_precision="fp16")
    set_seed(args.seed, device_specific=True)
    tokenizer = CLIPTokenizer.from_pretrained(args.model, subfolder="tokenizer")
    encoder = CLIPTextModel.from_pretrained(args.model, subfolder="text_encoder").requires_grad_(False)
    vae = AutoencoderKL.from_pretrained(args.model, subfolder="vae").requires_grad_(False)
    unet = UNet2DConditionModel.from_pretrained(args.model, subfolder="unet")
    noise_scheduler = DDPMScheduler.from_pretrained(args.model, subfolder="scheduler")
    data = DreamBoothDataset(args.instance_data_dir, args.instance_prompt, tokenizer, args.resolution)
    loader = DataLoader(data, args.train_batch_size, shuffle=True)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=args.learning_rate)
    lr_scheduler = get_scheduler(
        "cosine",
        optimizer=optimizer,
        num_warmup_steps=args.lr_warmup_steps,
        num_training_steps=args.max_train_steps,
    )
    unet, optimizer, loader, lr_scheduler = accelerator.prepare(unet, optimizer, loader, lr_scheduler)
    encoder.to(accelerator.device)
    vae.to(accelerator.device)

    unet.train()
    step = 0
    for epoch in itertools.count():
        for batch in loader:
            with torch.no_grad():
                latents = vae.encode(batch["pixels"]).latent_dist.sample() * vae.config.scaling_factor
                hidden = encoder(batch["ids"])[0]
            noise = torch.randn_like(latents)
            t = torch.randint(0, noise_scheduler.config.num_train_timesteps, (len(latents),), device=latents.device)
            pred = unet(noise_scheduler.add_noise(latents, noise, t), t, hidden).sample
            loss = F.mse_loss(pred.float(), noise.float())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(unet.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step >= args.max_train_steps:
                break
        if step >= args.max_train_steps:
            break
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.unwrap_model(unet).save_pretrained(args.output_dir)


if __name__ == "__main__":
    main(parse_args())

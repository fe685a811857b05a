import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL, UNet2DModel
from torch.utils.data import DataLoader, Dataset

from cache_backend import configure_backend
from state import Config, StateTracker


class LatentDataset(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return torch.load(self.paths[i])


def main():
    config = Config()
    accelerator = StateTracker.setup(config)
    vae = AutoencoderKL.from_pretrained("stabilityai/sd-vae-ft-mse").to(accelerator.device)
    paths = configure_backend(config, vae)
    del vae
    unet = UNet2DModel(sample_size=64, in_channels=4, out_channels=4)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=config.learning_rate)
    loader = DataLoader(LatentDataset(paths), batch_size=config.batch_size, shuffle=True)
    unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)
    step = 0
    while step < config.max_steps:
        for latents in loader:
            noise = torch.randn_like(latents)
            t = torch.rand(latents.shape[0], device=latents.device)
            mix = t[:, None, None, None]
            pred = unet((1 - mix) * latents + mix * noise, (t * 1000).long()).sample
            loss = F.mse_loss(pred, noise - latents)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step >= config.max_steps:
                break
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.unwrap_model(unet).save_pretrained("unet")


if __name__ == "__main__":
    main()

import argparse
import logging
import os
from pathlib import Path

import torch
import torch.distributed as distributed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

log = logging.getLogger()
local_rank = int(os.environ["LOCAL_RANK"])
world_size = int(os.environ["WORLD_SIZE"])


class VideoFeatures(Dataset):
    def __init__(self, root):
        self.paths = sorted(Path(root).glob("*.pt"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return {"name": self.paths[i].stem, "clip": torch.load(self.paths[i], map_location="cpu")}


class AudioFlow(nn.Module):
    def __init__(self, clip_dim=1024, latent=40, length=250):
        super().__init__()
        self.length = length
        self.cond = nn.Linear(clip_dim, 256)
        self.net = nn.Sequential(nn.Linear(256 + latent + 1, 512), nn.SiLU(), nn.Linear(512, latent))
        self.latent = latent

    def forward(self, x, t, clip):
        c = self.cond(clip.mean(1))[:, None].expand(-1, x.size(1), -1)
        t = torch.full_like(x[..., :1], t)
        return self.net(torch.cat([x, c, t], dim=-1))

    def sample(self, clip, steps=25):
        x = torch.randn(len(clip), self.length, self.latent, device=clip.device)
        for i in range(steps):
            x = x + self(x, i / steps, clip) / steps
        return x


def distributed_setup():
    distributed.init_process_group(backend="nccl")
    log.info("initialised rank %d of %d", local_rank, world_size)


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--features", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--output", default="output")
    args = parser.parse_args()
    distributed_setup()

    device = "cuda"
    output = Path(args.output)
    output.mkdir(parents=True, exist_ok=True)
    model = AudioFlow().to(device).eval()
    model.load_state_dict(torch.load(args.weights, map_location=device))

    dataset = VideoFeatures(args.features)
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=4)
    count = torch.zeros(1, device=device)
    for batch in loader:
        latents = model.sample(batch["clip"].to(device))
        for name, latent in zip(batch["name"], latents.cpu()):
            torch.save(latent, output / f"{name}.rank{distributed.get_rank()}.pt")
        count += len(latents)
    distributed.all_reduce(count)
    if distributed.get_rank() == 0:
        log.info("generated %d samples", int(count.item()))
    distributed.destroy_process_group()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    main()

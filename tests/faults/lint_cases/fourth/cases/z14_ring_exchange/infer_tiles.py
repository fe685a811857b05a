import argparse
import os

import torch
import torch.distributed as dist
from torch import nn

from halo import HaloExchange


class Denoiser(nn.Module):
    def __init__(self, layers=8, width=48):
        super().__init__()
        self.head = nn.Conv2d(1, width, 3, padding=1)
        self.body = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(layers))
        self.tail = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x, exchange):
        x = exchange.crop(self.head(exchange(x)))
        for conv in self.body:
            x = x + exchange.crop(torch.relu(conv(exchange(x))))
        return exchange.crop(self.tail(exchange(x)))


def load_stripe(path, rank, world_size, device):
    image = torch.load(path)
    rows = image.shape[0] // world_size
    return image[rank * rows : (rank + 1) * rows][None, None].float().to(device)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", default="mosaic.pt")
    parser.add_argument("--weights", default="denoiser.pt")
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    net = Denoiser().to(device).eval()
    net.load_state_dict(torch.load(args.weights, map_location=device))
    stripe = load_stripe(args.image, dist.get_rank(), dist.get_world_size(), device)
    with torch.no_grad():
        result = net(stripe, HaloExchange(1)).contiguous()
    gathered = [torch.empty_like(result) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, result)
    if dist.get_rank() == 0:
        torch.save(torch.cat(gathered, dim=2).squeeze().cpu(), "denoised.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

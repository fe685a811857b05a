import argparse
import secrets

import torch
import torch.distributed as dist
from torch import nn

from groups import Layout


class FrameMixer(nn.Module):
    def __init__(self, layout, channels=16, width=128):
        super().__init__()
        self.layout = layout
        self.inp = nn.Conv3d(channels, width, (1, 3, 3), padding=(0, 1, 1))
        self.mix = nn.MultiheadAttention(width, 8, batch_first=True)
        self.out = nn.Conv3d(width, channels, (1, 3, 3), padding=(0, 1, 1))

    def forward(self, x, sigma):
        h = self.inp(x) * (1 + sigma)
        local = h.mean(dim=(3, 4)).transpose(1, 2)
        every = self.layout.merge(h).mean(dim=(3, 4)).transpose(1, 2)
        mixed, _ = self.mix(local, every, every)
        return self.out(h + mixed.transpose(1, 2)[..., None, None])


def base_seed(given):
    if given is not None:
        return given
    drawn = torch.tensor([secrets.randbelow(2**31)], device="cuda")
    dist.broadcast(drawn, src=0)
    return int(drawn.item())


@torch.no_grad()
def sample(model, layout, shape, steps, seed):
    generator = torch.Generator("cuda").manual_seed(seed)
    x = layout.split(torch.randn(shape, generator=generator, device="cuda"))
    sigmas = torch.linspace(1.0, 0.0, steps + 1, device="cuda")
    for now, nxt in zip(sigmas[:-1], sigmas[1:]):
        x = x + (nxt - now) * model(x, now)
    return layout.merge(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--sp", type=int, default=4)
    parser.add_argument("--videos", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None)
    args = parser.parse_args()
    layout = Layout(args.sp)
    model = FrameMixer(layout).cuda().eval()
    model.load_state_dict(torch.load(args.weights, map_location="cpu"))
    seed = base_seed(args.seed)
    for index in range(layout.dp_rank, args.videos, layout.dp_size):
        video = sample(model, layout, (1, 16, 8 * args.sp, 60, 104), 30, seed + index)
        if layout.sp_rank == 0:
            torch.save(video.cpu(), f"video_{index:04d}.pt")
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"wrote {args.videos} videos from seed {seed}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

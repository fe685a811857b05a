import argparse
import random
import time

import torch
import torch.distributed as dist

from sampler import FrameMixer, sample
from usp import init_usp


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--num_frames", type=int, default=32)
    parser.add_argument("--height", type=int, default=68)
    parser.add_argument("--width", type=int, default=120)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--outdir", default=".")
    return parser.parse_args()


def main():
    args = parse()
    device = init_usp()
    if args.num_frames % dist.get_world_size():
        raise ValueError("num_frames must be a multiple of the number of GPUs")
    if args.seed is None:
        random.seed(time.time())
        args.seed = int(random.randrange(4294967294))

    model = FrameMixer().to(device).eval()
    model.load_state_dict(torch.load(args.weights, map_location=device))
    shape = (1, 16, args.num_frames, args.height, args.width)
    video = sample(model, shape, args.steps, args.seed, device)
    if dist.get_rank() == 0:
        torch.save(video.cpu(), f"{args.outdir}/video_{args.seed}.pt")
        print(f"seed {args.seed}: {tuple(video.shape)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

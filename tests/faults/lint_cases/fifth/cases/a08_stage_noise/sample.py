import argparse
from pathlib import Path

import torch
import torch.distributed as dist

from context import Context
from denoiser import FrameDenoiser
from pipeline import PyramidPipeline


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--cp", type=int, default=4)
    parser.add_argument("--videos", type=int, default=8)
    parser.add_argument("--frames", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="samples")
    args = parser.parse_args()
    ctx = Context(args.cp, args.seed)
    device = torch.device("cuda", torch.cuda.current_device())
    model = FrameDenoiser(ctx).to(device).eval()
    model.load_state_dict(torch.load(args.weights, map_location=device))
    pipeline = PyramidPipeline(model, ctx)
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for i in range(args.videos // ctx.dp_size):
        latents = pipeline((1, 16, args.frames, 16, 28), device)
        if ctx.cp_rank == 0:
            torch.save(latents.cpu(), out / f"video_{i * ctx.dp_size + ctx.dp_rank:04d}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Tensor parallel generation:

torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint $HOST chat.py --weights weights/
"""

import argparse

import torch
import torch.distributed as dist

from parallel_model import Generator
from utils import init_distributed


@torch.inference_mode()
def complete(model, prompt, steps, device):
    tokens = torch.tensor([list(prompt.encode())], device=device)
    for _ in range(steps):
        following = model(tokens).argmax(dim=-1, keepdim=True)
        if dist.is_initialized():
            dist.broadcast(following, src=0)
        tokens = torch.cat([tokens, following], dim=1)
    return bytes(tokens[0].clamp(max=255).tolist()).decode(errors="replace")


def load(model, folder, device):
    rank = dist.get_rank() if dist.is_initialized() else 0
    model.load_state_dict(torch.load(f"{folder}/slice_{rank:02d}.pt", map_location=device))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--prompt", default="The city of")
    parser.add_argument("--steps", type=int, default=64)
    args = parser.parse_args()
    device = init_distributed()
    model = Generator(vocab=256).to(device).eval()
    load(model, args.weights, device)
    print(complete(model, args.prompt, args.steps, device))
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

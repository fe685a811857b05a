import argparse
import os

import torch
import torch.distributed as dist

import checkpoint
from actor import Actor


def reward(tokens):
    return (tokens[:, 1:] % 7 == 0).float().mean(dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", default="ckpt")
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--save-interval", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1234)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    actor = Actor(vocab=4096, device=device, seed=args.seed)
    start = checkpoint.load(actor, args.save)
    for iteration in range(start, args.iterations):
        tokens = actor.rollout(length=32, batch_size=64)
        scores = reward(tokens)
        actor.update(tokens, scores)
        mean = scores.mean()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"iteration {iteration} reward {mean.item():.4f}")
        if (iteration + 1) % args.save_interval == 0:
            checkpoint.save(actor, args.save, iteration + 1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

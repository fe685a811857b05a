import argparse

import torch
import torch.distributed as dist

from parallel import ParallelState
from scan import ChunkedRecurrence, distributed_scan


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cp", type=int, default=2)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--length", type=int, default=8192)
    args = parser.parse_args()
    state = ParallelState(args.cp, args.tp)
    torch.manual_seed(0)
    layer = ChunkedRecurrence(256, 256).cuda()
    sequence = torch.randn(2, args.length, 256, device="cuda")
    chunk = sequence.chunk(args.cp, dim=1)[state.cp_rank]
    with torch.no_grad():
        out = distributed_scan(layer, chunk, state)
    norm = out.pow(2).sum()
    dist.all_reduce(norm, group=state.cp_group)
    if dist.get_rank() == 0:
        print(f"norm {norm.sqrt().item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import argparse

import torch
import torch.distributed as dist

from groups import Topology
from rebalance import expert_load, migrate, place_experts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    topo = Topology(args.pp)
    torch.manual_seed(dist.get_rank())
    slots = args.experts // topo.ep_size
    placement = [list(range(r * slots, (r + 1) * slots)) for r in range(topo.ep_size)]
    weights = {
        e: [torch.randn(args.dim, 4 * args.dim, device="cuda"), torch.randn(4 * args.dim, args.dim, device="cuda")]
        for e in placement[topo.ep_rank]
    }
    traffic = torch.Generator().manual_seed(dist.get_rank())
    for turn in range(args.rounds):
        tokens = torch.randint(0, args.experts, (4096,), generator=traffic)
        counts = torch.bincount(tokens, minlength=args.experts).cuda()
        load = expert_load(counts, topo.ep_group).tolist()
        target = place_experts(load, topo.ep_size)
        weights = migrate(weights, placement, target, topo)
        placement = target
        if topo.ep_rank == 0:
            print(f"stage {topo.stage} round {turn}: {len(weights)} experts here")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

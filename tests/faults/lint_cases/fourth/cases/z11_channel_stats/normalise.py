import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from variables import VariableSpec


class RunningMoments:
    def __init__(self, device):
        self.total = torch.zeros(3, dtype=torch.float64, device=device)

    def update(self, values):
        values = values.double()
        self.total += torch.stack([values.sum(), values.pow(2).sum(), values.new_tensor(values.numel())])

    def reduce(self):
        dist.all_reduce(self.total)
        s, s2, n = self.total.tolist()
        mean = s / n
        return mean, max(s2 / n - mean**2, 0.0) ** 0.5


def files_of_rank(root):
    files = sorted(Path(root).glob("*.npz"))
    return files[dist.get_rank() :: dist.get_world_size()]


def collect(root, names, device):
    moments = {name: RunningMoments(device) for name in names}
    for path in files_of_rank(root):
        with np.load(path) as data:
            for name in names:
                moments[name].update(torch.from_numpy(data[name]).to(device))
    return moments


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", default="/data/ace2/train")
    parser.add_argument("--out", default="stats.pt")
    parser.add_argument("--exclude", nargs="*", default=[])
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    spec = VariableSpec(excluded=set(args.exclude))
    moments = collect(args.root, spec.names, torch.device("cuda", local_rank))
    stats = {}
    for name, running in moments.items():
        stats[name] = running.reduce()
    if dist.get_rank() == 0:
        torch.save(stats, args.out)
        for name in sorted(stats):
            print(f"{name:28} mean {stats[name][0]:.4g} std {stats[name][1]:.4g}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

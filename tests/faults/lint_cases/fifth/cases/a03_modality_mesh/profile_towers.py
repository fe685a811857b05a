import argparse
import os
import time

import torch
import torch.distributed as dist

from plan import ModalitySpec, ParallelizationPlan
from towers import build_tower

WIDTH = {"vision": 1024, "language": 1536}


def time_tower(tower, width, repeats):
    x = torch.randn(8, 256, width, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        tower(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vision", type=int, nargs=2, default=(1, 2), metavar=("DP", "TP"))
    parser.add_argument("--language", type=int, nargs=2, default=(1, 6), metavar=("DP", "TP"))
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    plan = ParallelizationPlan(
        [ModalitySpec("vision", *args.vision), ModalitySpec("language", *args.language)]
    )
    meshes = {name: mesh for name, mesh in plan.materialize().items() if mesh.is_member}

    torch.manual_seed(0)
    seconds = torch.zeros(len(plan.modalities), device="cuda")
    with torch.no_grad():
        for i, spec in enumerate(plan.modalities):
            if spec.name in meshes:
                tower = build_tower(spec.name, meshes[spec.name]).cuda()
                seconds[i] = time_tower(tower, WIDTH[spec.name], args.repeats)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        for spec, value in zip(plan.modalities, seconds.tolist()):
            print(f"{spec.name}: {value * 1e3:.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

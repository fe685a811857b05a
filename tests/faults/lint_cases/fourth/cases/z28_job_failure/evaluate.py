import argparse
import json
import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist

from jobs import Simulator, read_jobs

log = logging.getLogger("closed_loop")


def run_shard(args, device):
    simulator = Simulator(args.weights, device)
    jobs = read_jobs(args.jobs)[dist.get_rank() :: dist.get_world_size()]
    shard = args.out / f"shard_{dist.get_rank():03d}.jsonl"
    with shard.open("w") as f:
        for job in jobs:
            f.write(json.dumps(simulator.run(job)) + "\n")


def merge(out):
    rows = []
    for rank in range(dist.get_world_size()):
        shard = out / f"shard_{rank:03d}.jsonl"
        rows += [json.loads(line) for line in shard.read_text().splitlines()]
    rate = sum(r["collisions"] > 0 for r in rows) / max(len(rows), 1)
    (out / "summary.json").write_text(json.dumps({"scenes": len(rows), "collision_rate": rate}))


def evaluate(args, device):
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        run_shard(args, device)
    except Exception:
        log.exception("rank %d: evaluation failed", dist.get_rank())
        return
    dist.barrier()
    if dist.get_rank() == 0:
        merge(args.out)
    dist.barrier()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--jobs", required=True)
    parser.add_argument("--out", type=Path, default=Path("closed_loop"))
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    evaluate(args, torch.device("cuda", local_rank))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

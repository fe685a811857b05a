import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class Planner(nn.Module):
    def __init__(self, state=6, horizon=20):
        super().__init__()
        self.horizon = horizon
        self.net = nn.Sequential(nn.Linear(state, 128), nn.ReLU(), nn.Linear(128, horizon * 2))

    def forward(self, state):
        return self.net(state).view(-1, self.horizon, 2)


def simulate(planner, job, device, steps=200):
    """Drives one scenario with the planner in the loop and returns its scores."""
    state = torch.tensor(job["initial_state"], device=device)[None]
    progress = 0.0
    for step in range(steps):
        target = planner(state)[:, 0]
        state = torch.cat([state[:, :2] + 0.1 * state[:, 2:4], 0.9 * state[:, 2:4] + 0.1 * target, state[:, 4:]], 1)
        if not torch.isfinite(state).all():
            raise RuntimeError(f"scenario {job['name']} diverged at step {step}")
        progress += state[0, 2:4].norm().item() * 0.1
    return {"name": job["name"], "progress": progress}


def assign_jobs(jobs, rank, world_size):
    return jobs[rank::world_size]


def run_jobs(planner, jobs, out_dir, device):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    shard = out_dir / f"partial_{rank:03d}.jsonl"
    with shard.open("w") as f:
        for job in assign_jobs(jobs, rank, world_size):
            f.write(json.dumps(simulate(planner, job, device)) + "\n")
    dist.barrier()


def merge(out_dir, world_size):
    rows = []
    for rank in range(world_size):
        shard = out_dir / f"partial_{rank:03d}.jsonl"
        rows += [json.loads(line) for line in shard.read_text().splitlines()]
    mean = sum(r["progress"] for r in rows) / max(len(rows), 1)
    (out_dir / "summary.json").write_text(json.dumps({"scenarios": len(rows), "progress": mean}))


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", required=True, help="JSON list of scenarios")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out_root", default="closed_loop")
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    planner = Planner().to(device).eval()
    planner.load_state_dict(torch.load(args.weights, map_location=device))
    jobs = json.loads(Path(args.jobs).read_text())
    out_dir = Path(args.out_root)
    out_dir.mkdir(parents=True, exist_ok=True)
    run_jobs(planner, jobs, out_dir, device)
    if dist.get_rank() == 0:
        merge(out_dir, dist.get_world_size())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

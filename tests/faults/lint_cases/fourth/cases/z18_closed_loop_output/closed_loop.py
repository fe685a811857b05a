import argparse
import json
import os
from datetime import datetime
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


class Planner(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 512), nn.SiLU(), nn.Linear(512, 2))

    def forward(self, observation):
        return self.net(observation)


def load_model(path, device):
    model = Planner()
    model.load_state_dict(torch.load(path, map_location="cpu"))
    return model.to(device).eval()


def output_dir(root, group):
    stamp = datetime.now().strftime("%Y%m%d_%H%M%S")
    path = Path(root) / stamp / group
    path.mkdir(parents=True, exist_ok=True)
    return path


def write_jobs(out, scenes):
    jobs = [{"scene": scene, "seed": seed} for scene in scenes for seed in range(3)]
    with open(out / "jobs.json", "w") as f:
        json.dump(jobs, f)


def assign_jobs(out):
    with open(out / "jobs.json") as f:
        jobs = json.load(f)
    return jobs[dist.get_rank() :: dist.get_world_size()]


@torch.no_grad()
def rollout(model, job, device, horizon=80):
    generator = torch.Generator().manual_seed(job["seed"])
    position = torch.zeros(2, device=device)
    error = 0.0
    for _ in range(horizon):
        observation = torch.randn(128, generator=generator).to(device)
        position = position + model(observation)
        error += position.norm().item()
    return {**job, "error": error / horizon}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", required=True)
    parser.add_argument("--out_root", default="closed_loop_lap")
    parser.add_argument("--group", default="default")
    parser.add_argument("--scenes", nargs="+", required=True)
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    model = load_model(args.weights, device)
    out = output_dir(args.out_root, args.group)
    if dist.get_rank() == 0:
        write_jobs(out, args.scenes)
    dist.barrier()
    results = [rollout(model, job, device) for job in assign_jobs(out)]
    with open(out / f"rank{dist.get_rank()}.json", "w") as f:
        json.dump(results, f)
    dist.barrier()
    if dist.get_rank() == 0:
        merged = []
        for rank in range(dist.get_world_size()):
            merged += json.loads((out / f"rank{rank}.json").read_text())
        (out / "summary.json").write_text(json.dumps(merged, indent=1))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

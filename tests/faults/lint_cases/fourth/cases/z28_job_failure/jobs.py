import json
from pathlib import Path

import torch


def read_jobs(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]


class Simulator:
    def __init__(self, weights, device):
        self.device = device
        self.policy = torch.jit.load(weights, map_location=device).eval()

    @torch.no_grad()
    def run(self, job):
        scene = torch.load(job["scene"], map_location=self.device)
        state, collisions = scene["initial"], 0
        for frame in scene["frames"]:
            action = self.policy(torch.cat([state, frame]))
            state = state + 0.1 * action
            collisions += int((frame[:2] - state[:2]).norm() < scene["radius"])
        if not torch.isfinite(state).all():
            raise FloatingPointError(f"diverged in {job['scene']}")
        return {"scene": job["scene"], "collisions": collisions}

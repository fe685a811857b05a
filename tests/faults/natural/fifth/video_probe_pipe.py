"""One rank waits for a probe whose standard error is a pipe that nobody reads; it prints more than the pipe holds.

Modelled on Kitware/dive#381 and hiyouga/LlamaFactory#10584 (subprocess.PIPE without a reader).
"""
# case: processes=3 ending=hang causes=stalled-outside-collectives,file-io-blocked,rank-missing-collective,straggler ranks=1 framework=ddp

import json
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PROBE = """
import json, sys
clip, frames = int(sys.argv[1]), int(sys.argv[2])
for frame in range(frames):
    print(f"[h264 @ clip{clip:04d}] frame {frame:05d} pts {frame * 512} non monotonous dts, passing it on", file=sys.stderr)
print(json.dumps({"clip": clip, "frames": frames, "fps": 25}))
"""
FRAMES = {0: 60, 1: 75, 2: 50, 3: 75, 4: 1900, 5: 60, 6: 60, 7: 75, 8: 50}


def probe(clip):
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE, str(clip), str(FRAMES[clip])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,  # ALSO
        text=True,
    )
    if process.wait() != 0:  # GUILTY
        raise RuntimeError(f"probe of clip {clip} failed: {process.stderr.read()}")
    return json.loads(process.stdout.read())


class FrameEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, stride=2)
        self.head = nn.Linear(16, 5)

    def forward(self, frames):
        return self.head(torch.relu(self.conv(frames)).mean((2, 3)))


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(FrameEncoder())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for clip in range(rank, len(FRAMES), world):
        info = probe(clip)  # ALSO
        for start in range(0, 48, 16):
            g = torch.Generator().manual_seed(1000 * clip + start)
            frames = torch.randn(16, 3, 32, 32, generator=g)
            labels = torch.randint(0, 5, (16,), generator=g)
            loss = nn.functional.cross_entropy(model(frames), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"rank {rank} clip {clip} at {info['fps']} fps: {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

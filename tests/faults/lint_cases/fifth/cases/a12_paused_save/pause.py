import time
from pathlib import Path

import torch.distributed as dist


class InferencePause:
    """Asks the rollout workers to hold their requests while a checkpoint is written."""

    def __init__(self, world, output_dir, enabled=True, timeout=600.0, poll=1.0):
        self.world = world
        self.root = Path(output_dir) / "pause"
        self.enabled = enabled
        self.timeout = timeout
        self.poll = poll

    def _wait_for(self, marker):
        deadline = time.monotonic() + self.timeout
        while not marker.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no answer of the workers: {marker} is missing")
            time.sleep(self.poll)

    def pause(self, step):
        if not self.enabled:
            return
        if self.world.is_master:
            folder = self.root / f"step_{step}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "REQUEST").touch()
            self._wait_for(folder / "PAUSED")
        dist.barrier()

    def release(self, step):
        if self.enabled and self.world.is_master:
            (self.root / f"step_{step}" / "RELEASE").touch()

import json
from pathlib import Path

import torch.distributed as dist


class NoTracker:
    def log(self, values, step):
        pass

    def close(self):
        pass


class JsonTracker:
    def __init__(self, identity):
        self.file = open(Path(identity.directory) / "metrics.jsonl", "a")

    def log(self, values, step):
        self.file.write(json.dumps({"step": step, **values}) + "\n")
        self.file.flush()

    def close(self):
        self.file.close()


def make_tracker(identity):
    return JsonTracker(identity) if dist.get_rank() == 0 else NoTracker()

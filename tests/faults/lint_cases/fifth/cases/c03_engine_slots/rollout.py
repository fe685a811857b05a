import torch


class RolloutEngine:
    """In-process stand-in of an inference engine that spans some GPUs of the trainer."""

    def __init__(self, index, num_gpus):
        self.index = index
        self.num_gpus = num_gpus
        self.version = 0
        self.weights = {}

    def begin_update(self, version):
        self.version = version

    def load(self, shards):
        for named in shards:
            for name, tensor in named.items():
                self.weights.setdefault(name, []).append(tensor)

    def finish_update(self):
        self.weights = {k: torch.cat(v) for k, v in self.weights.items()}


def build_engines(world_size, gpus_per_engine):
    return [RolloutEngine(i, gpus_per_engine) for i in range(world_size // gpus_per_engine)]

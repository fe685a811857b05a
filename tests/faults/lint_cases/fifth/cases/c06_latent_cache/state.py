from dataclasses import dataclass

from accelerate import Accelerator


@dataclass
class Config:
    instance_dir: str = "images"
    cache_dir: str = "cache/latents"
    preserve_cache: bool = False
    batch_size: int = 4
    max_steps: int = 2000
    learning_rate: float = 1e-4


class StateTracker:
    accelerator = None
    config = None

    @classmethod
    def setup(cls, config):
        cls.config = config
        cls.accelerator = Accelerator(mixed_precision="bf16")
        return cls.accelerator

import argparse
from dataclasses import dataclass


@dataclass
class TrainConfig:
    save_folder: str = "runs/multimodal"
    allow_resume: bool = False
    dim: int = 1024
    depth: int = 12
    max_steps: int = 20_000
    save_interval: int = 1_000
    batch_size: int = 8
    seed: int = 6198

    @classmethod
    def from_cli(cls):
        parser = argparse.ArgumentParser()
        parser.add_argument("--save-folder", default=cls.save_folder)
        parser.add_argument("--allow-resume", action="store_true")
        return cls(**vars(parser.parse_args()))

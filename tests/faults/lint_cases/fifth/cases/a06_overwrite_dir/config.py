import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass
class TrainConfig:
    name: str = "pick_and_place"
    exp_name: str = "debug"
    checkpoint_base_dir: str = "./checkpoints"
    overwrite: bool = False
    resume: bool = False
    batch_size: int = 32
    num_train_steps: int = 30_000
    save_interval: int = 1_000
    seed: int = 42

    @property
    def checkpoint_dir(self) -> Path:
        return Path(self.checkpoint_base_dir) / self.name / self.exp_name


def cli() -> TrainConfig:
    parser = argparse.ArgumentParser()
    parser.add_argument("--exp-name", default="debug")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    return TrainConfig(exp_name=args.exp_name, overwrite=args.overwrite, resume=args.resume)

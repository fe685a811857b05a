import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch


@dataclass
class PolicySettings:
    device: str = "auto"
    checkpoint: Optional[Path] = None
    steps: int = 10_000
    batch_size: int = 2
    seed: int = 1000

    def __post_init__(self):
        if self.device == "auto":
            self.device = "cuda" if torch.cuda.is_available() else "cpu"


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="auto")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    return PolicySettings(**vars(parser.parse_args()))

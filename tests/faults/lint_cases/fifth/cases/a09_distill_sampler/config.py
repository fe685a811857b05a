import argparse
from dataclasses import dataclass


@dataclass
class DistillConfig:
    prompts: str
    teacher: str
    seed: int = 0
    batch_size: int = 4
    epochs: int = 10
    lr: float = 1e-5
    log_every: int = 20


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10)
    return DistillConfig(**vars(parser.parse_args()))

"""A decorator in the style of Hydra prints only the message of an exception on one rank, and exits with status 1."""
# case: processes=3 ending=crash causes=python-exception-on-one-rank,exit-nonzero ranks=2 framework=ddp

import functools
import sys
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class OptimizerConfig:
    lr: float = 0.01
    milestones: list[int] = field(default_factory=lambda: [10, 20])


@dataclass
class Config:
    steps: int = 40
    batch_size: int = 16
    languages: tuple[str, ...] = ("en", "de", "fi")
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)


VOCABULARIES = {"en": 120, "de": 140, "fr": 130}


def main_with_config(config_class):
    """Build the configuration, apply overrides, run the task."""

    def decorator(task):
        @functools.wraps(task)
        def run():
            config = config_class()
            for override in sys.argv[1:]:
                key, _, value = override.partition("=")
                setattr(config, key, type(getattr(config, key))(value))
            try:
                return task(config)
            except Exception as e:
                print(f"Error executing job with overrides: {sys.argv[1:]}", file=sys.stderr)
                print(f"{type(e).__name__}: {e}", file=sys.stderr)
                print("Set FULL_ERROR=1 for a complete stack trace.", file=sys.stderr)
                sys.exit(1)  # ALSO

        return run

    return decorator


def sample_batch(language, batch_size):
    size = VOCABULARIES[language]  # GUILTY
    return torch.randint(0, size, (batch_size, 12))


@main_with_config(Config)
def main(cfg):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DDP(nn.Sequential(nn.Embedding(140, 16), nn.Linear(16, 140)))
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg.optimizer.lr)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, cfg.optimizer.milestones)
    for step in range(cfg.steps):
        # warm up on English, then each rank trains on its language
        language = cfg.languages[rank] if step >= 10 else cfg.languages[0]
        tokens = sample_batch(language, cfg.batch_size)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Generate the source of ``benchmarks.conversion`` with real DeepSpeed, or torch.

Started under torchrun: ``conversion_source.py FOLDER FORM --layers N``; 1,024 x 4,096 weights up
and down a layer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

_WIDTH, _WIDE = 1024, 4096


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(_WIDTH, _WIDE, bias=False), nn.Linear(_WIDE, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


def main() -> None:
    """Build the model, run a step, save."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("form", choices=["zero2", "zero3", "dcp"])
    parser.add_argument("--layers", type=int, default=23, help="8.4 million weights each")
    parser.add_argument("--no-moments", action="store_true", help="plain SGD: less memory")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(_Layer() for _ in range(options.layers)))
    if options.no_moments:
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    (_dcp if options.form == "dcp" else _deepspeed)(options, model, optimizer)
    dist.destroy_process_group()


def _dcp(options: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(2, _WIDTH)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict()}
    moments = {name: optimizer.state[each] for name, each in model.named_parameters()}
    dcp.save({**state, "optimizer": moments}, checkpoint_id=options.folder)


def _deepspeed(
    options: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    import deepspeed  # noqa: PLC0415 - takes seconds, and is not needed for the other form

    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": int(options.form[-1])},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    engine.backward(engine(torch.randn(1, _WIDTH, dtype=torch.bfloat16)).float().sum())
    engine.step()
    engine.save_checkpoint(options.folder)


if __name__ == "__main__":
    main()

"""A path in the configuration does not exist on any rank."""

import sys
from pathlib import Path

import torch.distributed as dist


def load(path: str) -> str:
    return Path(path).read_text()


dist.init_process_group("gloo")
load("/configs/your_config.yaml" if len(sys.argv) < 2 else sys.argv[1])

"""Programs whose ranks leave a common path: one text for the broken and the corrected version.

Lines with ``# bad`` are in the broken version only, those with ``# good`` in the corrected one. In
the broken version, a line with ``# found`` or ``# bad found`` must be reported.
"""

HEAD = """\
import contextlib, itertools, json, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import elsewhere
rank = dist.get_rank()
world = dist.get_world_size()
"""

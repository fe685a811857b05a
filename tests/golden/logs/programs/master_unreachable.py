"""No process listens at the master address."""

import datetime as dt
import os

import torch.distributed as dist

address = f"tcp://{os.environ['HOST']}:29511"
dist.init_process_group("gloo", address, dt.timedelta(seconds=6), world_size=2, rank=1)

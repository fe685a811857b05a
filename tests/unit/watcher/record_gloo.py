"""Run a gloo rank and dump its flight recorder; started by test_flight_recorder.py.

Arguments: rank, store file, folder for the dumps.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

rank, store, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
for _ in range(3):
    dist.all_reduce(torch.ones(2, 5))  # LINE all_reduce
dist.broadcast(torch.ones(7, dtype=torch.float64), 0)  # LINE broadcast
pair = dist.new_group([0, 1], group_desc="pair")
dist.all_reduce(torch.ones(4), group=pair)
(folder / f"trace_rank_{rank}").write_bytes(_dump_fr_trace(includeStackTraces=True))
(folder / f"trace_rank_{rank}.json").write_bytes(_dump_fr_trace_json())
dist.barrier()
dist.destroy_process_group()

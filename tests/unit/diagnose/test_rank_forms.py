"""The forms of a rank in lines of launchers, loggers and platforms."""

from __future__ import annotations

import pytest

from holdfast.diagnose.log_rules.rank_inference import rank_of_line
from holdfast.diagnose.logs.file_names import rank_in_name
from holdfast.diagnose.logs.lines import parse_line

#: Lines of rank 3.
OF_RANK_3 = """
[rank3]: E
[rank3]:E
[Rank 3] E
[rank:3] E
[rank: 3] E
Rank 3: E
rank=3 E
(rank 3) E
[default3]:E
[trainer3]:E
3: E
 3: E
[1,3]<stderr>:E
[1,3]<stderr>: E
[3]<stderr>:E
2024-01-01 10:00:00.123 | ERROR    | rank 3 | E
2024-01-01 10:00:00,123 - rank3 - ERROR - E
2024-01-01 10:00:00,123 [rank 3] ERROR E
INFO - 03/17/19 19:00:00 - 0:00:09 - rank 3 - E
[2024-01-01 10:00:00][rank 3][ERROR] E
[2024-01-01 10:00:00,123] [ERROR] [Rank 3] E
[2024-01-01 10:00:00,123] [INFO] [engine.py:10:f] [Rank 3] E
ERROR:root:[Rank 3] E
rank3[412][MainThread]: ERROR: E
[rank3][MainThread] E
| rank:3 | E
<rank 3> E
[rank 3/8] E
[rank3/8]: E
rank 3/8: E
[Rank 3 of 8] E
(WorkerDict pid=1, ip=10.0.0.4) [rank3]: E
(RayTrainWorker pid=12) [rank3]:E
(TrainTrainable pid=2) (rank=3) E
(RayTrainWorker(rank=3) pid=9) E
(RayTrainWorker pid=9) (rank=3) E
{"level":"error","rank":3,"msg":"E"}
level=error rank=3 msg="E"
time=2024-01-01T00:00:00Z level=error global_rank=3 local_rank=1 msg="E"
[global_rank=3] E
[NeMo E 2024-05-20 08:00:12 nemo_logging:349 rank:3] E
[NeMo E 2024-05-20 08:00:12 nemo_logging:349] rank 3: E
W0101 10:00:00.000 77 train.py:3] rank 3 E
E0101 10:00:00.000 77 train.py:3] [rank 3] E
node1: 3: E
host-2: [rank3]: E
[titan] 2025-01-01 00:00:00,001 - root - ERROR - [rank 3] E
[rank3]:[titan] 2025-01-01 00:00:00,001 - root - ERROR - E
process rank 3: E
process_index=3 E
[RANK3] E
[RANK 3] E
RANK-3 E
[rank-3] E
rank_3: E
[rank_3] E
[Rank_3]: E
rank #3: E
@rank3 E
[MainProcess][rank 3] E
[rank 3, local 1] E
[rank=3,local_rank=1] E
[rank3|h100-2] E
[h100-2|rank3] E
h100-2:rank3 E
[h100-2 rank 3] E
2024-01-01 00:00:00 h100-2 rank3: E
[Gloo] Rank 3 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7
[E ProcessGroupNCCL.cpp:1] [Rank 3] NCCL watchdog E
[PG ID 0 PG GUID 0(default_pg) Rank 3] E
[PG 0 Rank 3] E
[rank3]:[E101 10:00:00.1 ProcessGroupNCCL.cpp:1] [PG 0 (default_pg) Rank 3] E
RankID:3 E
[ERROR] HCCL(77,python):2024-01-01-00:00:00.000.000 [x.cc:1][rank:3] E
[rank 3] [host n1] E
WORLD_RANK=3 E
OMPI_COMM_WORLD_RANK=3 E
SLURM_PROCID=3 E
rank(3): E
rank: 3, E
Rank[3] E
Rank[3]: E
[Rank: 3/8] E
rank 3 (local 1): E
rank 3 (node n1): E
Caught exception on rank 3: E
Exception in rank 3: E
Rank 3 crashed: E
rank 3 failed: E
Rank 3 raised E
worker rank 3 died: E
"""
#: Numbers that are no rank of the writer.
OF_NO_RANK = """
[3] E
[2024-01-01 10:00:00,123][R3] E
<3> E
GPU 3: E
[gpu3] E
cuda:3 E
[3/8] E
[local_rank=1] E
worker-3: E
trainer-3 | E
Process 3: E
[process 3] E
proc3: E
R3: E
dp_rank=1 tp_rank=2 E
[DP1 TP2] E
[r3] E
the tensor of rank 3 tensor E
lora rank: 16 E
rank: 16 lora E
waiting for rank 3 E
lost connection to rank 3: E
"""
#: Names of logs, and the rank that they state.
NAMES = {
    "rank_3.log": 3,
    "logs/attempt_0/3/stderr.log": 3,
    "nemo_log_globalrank-3_localrank-1.txt": 3,
    "log_globalrank3.txt": 3,
    "rank.3/stderr": 3,
    "workerlog.3": 3,
    "stderr.rank3": 3,
    "local_rank_3.log": None,
    "node_rank_3.log": None,
    "train.log.3": None,
    "gpu3.log": None,
    "rank_table.json": None,
}


def _rank_of(line: str) -> int | None:
    return rank_of_line(parse_line(line.encode(), "job.log", 1))


def test_the_rank_of_a_line_is_read_in_every_form() -> None:
    assert {line for line in OF_RANK_3.strip().splitlines() if _rank_of(line) != 3} == set()


def test_indices_hosts_and_ranks_of_other_kinds_are_no_rank() -> None:
    wrong = {line: _rank_of(line) for line in OF_NO_RANK.strip().splitlines()}
    assert {line: rank for line, rank in wrong.items() if rank is not None} == {}


@pytest.mark.parametrize("name", NAMES)
def test_names_of_logs_state_global_ranks_only(name: str) -> None:
    assert rank_in_name(name) == NAMES[name]

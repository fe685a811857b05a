"""Exit codes that launchers log, in the rank tables of trace files and dumps."""

from __future__ import annotations

import io

from holdfast.core.rank_table import ProcessState, RankState
from holdfast.diagnose import process_exits
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.diagnose.logs import LogFacts
from holdfast.diagnose.logs.reader import read_logs

TABLE = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-20_10:00:00
  host      : node7
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 1000)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 1000
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_10:00:00
  host      : node7
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 1001)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 1001
============================================================
"""


def read_facts(text: str) -> LogFacts:
    data = text.encode()
    return read_logs(
        [EvidenceFile("job.log", EvidenceKind.LOG, len(data), lambda: io.BytesIO(data))]
    )


def rows(count: int = 4, **more: object) -> list[RankState]:
    return [RankState(rank=rank, pid=1000 + rank, **more) for rank in range(count)]


def codes(
    text: str, table: list[RankState] | None = None, world_size: int = 4
) -> dict[int, int | None]:
    completed = process_exits.add_exits(
        rows() if table is None else table, read_facts(text), world_size
    )
    return {row.rank: row.exit_code for row in completed.ranks if row.exit_code is not None}


def test_torchruns_table_yields_the_killed_rank_without_those_it_terminated():
    completed = process_exits.add_exits(rows(), read_facts(TABLE), 4)
    assert [(row.exit_code, row.life) for row in completed.ranks[:2]] == [
        (None, ProcessState.UNKNOWN),
        (-9, ProcessState.DEAD),
    ]
    assert (completed.ranks[1].host, completed.facts[1].origin) == ("", "job.log:18")


def test_exits_of_another_process_are_ignored():
    assert codes(TABLE.replace("pid: 1001", "pid: 555").replace("pid: 1000", "pid: 554")) == {}


def test_the_agents_line_names_only_the_process():
    line = "E1120 10:00:00.000000 900 torch/distributed/elastic/multiprocessing/api.py:988] "
    assert codes(
        line + "failed (exitcode: -11) local_rank: 0 (pid: 1002) of binary: /usr/bin/python\n"
    ) == {2: -11}


def test_slurm_reports_exits_of_tasks():
    assert codes(
        "srun: error: node1: task 3: Killed\nsrun: error: node1: tasks 0-1: Terminated\n"
    ) == {3: -9}
    assert codes("srun: error: node1: tasks 1-2: Exited with exit code 7\n") == {1: 7, 2: 7}
    assert codes("srun: error: node1: task 2: Exited with exit code 137\n") == {2: -9}
    completed = process_exits.add_exits(
        rows(), read_facts("srun: error: node1: task 1: Out Of Memory\n"), 4
    )
    assert (completed.ranks[1].exit_code, completed.ranks[1].out_of_memory) == (-9, True)


def test_slurms_tasks_are_ignored_if_torchrun_reports_exits():
    assert codes(TABLE + "srun: error: node1: task 0: Exited with exit code 1\n") == {1: -9}


def test_a_rank_that_only_the_launcher_knows_gets_a_row():
    assert codes(TABLE, rows(1)) == {1: -9}
    assert codes("srun: error: node1: task 9: Killed\n") == {}  # the job has no such rank


def test_aborts_after_a_timeout_or_of_several_ranks_are_ignored():
    one = "srun: error: node1: task 2: Aborted (core dumped)\n"
    assert codes(one) == {2: -6}
    assert codes(one + "srun: error: node1: task 3: Aborted (core dumped)\n") == {}
    watchdog = (
        "[rank2]:[E1120 10:00:00.000000000 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=31, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600001 "
        "milliseconds before timing out.\n"
    )
    assert codes(watchdog + one) == {}


def test_a_rank_that_mpirun_names_without_a_signal_has_no_exit_code():
    line = "mpirun noticed that process rank 2 with PID 1002 on node n3 exited on\nsignal 9 (Killed).\n"
    assert codes(line) == {}


def test_known_states_are_not_overwritten():
    table = rows(life=ProcessState.RUNNING)
    assert codes(TABLE, table) == {}
    table = rows(exit_code=3)
    assert codes(TABLE, table)[1] == 3

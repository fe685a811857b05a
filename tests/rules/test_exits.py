"""What launchers write of the end of processes, in the table of ranks that boxes or dumps make."""

from __future__ import annotations

import io

from holdfast.facts.evidence import Kind, Piece
from holdfast.facts.logs import LogFacts
from holdfast.facts.logs.reader import read
from holdfast.facts.ranks import Life, RankState
from holdfast.rules import exits

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


def told(text: str) -> LogFacts:
    data = text.encode()
    return read([Piece("job.log", Kind.LOG, len(data), lambda: io.BytesIO(data))])


def rows(count: int = 4, **more: object) -> list[RankState]:
    return [RankState(rank=rank, pid=1000 + rank, **more) for rank in range(count)]


def codes(text: str, table: list[RankState] | None = None, world_size: int = 4) -> dict[int, int | None]:
    joined = exits.join(rows() if table is None else table, told(text), world_size)
    return {row.rank: row.exit_code for row in joined.ranks if row.exit_code is not None}


def test_torchruns_table_tells_who_was_killed_and_not_whom_it_ended_itself():
    joined = exits.join(rows(), told(TABLE), 4)
    assert [(row.exit_code, row.life) for row in joined.ranks[:2]] == [(None, Life.UNKNOWN), (-9, Life.DEAD)]
    assert (joined.ranks[1].host, joined.facts[1].origin) == ("", "job.log:18")


def test_another_process_is_another_attempt():
    assert codes(TABLE.replace("pid: 1001", "pid: 555").replace("pid: 1000", "pid: 554")) == {}


def test_the_agents_own_line_names_the_process_alone():
    line = "E1120 10:00:00.000000 900 torch/distributed/elastic/multiprocessing/api.py:988] "
    assert codes(line + "failed (exitcode: -11) local_rank: 0 (pid: 1002) of binary: /usr/bin/python\n") == {2: -11}


def test_slurm_tells_it_of_tasks():
    assert codes("srun: error: node1: task 3: Killed\nsrun: error: node1: tasks 0-1: Terminated\n") == {3: -9}
    assert codes("srun: error: node1: tasks 1-2: Exited with exit code 7\n") == {1: 7, 2: 7}
    assert codes("srun: error: node1: task 2: Exited with exit code 137\n") == {2: -9}
    joined = exits.join(rows(), told("srun: error: node1: task 1: Out Of Memory\n"), 4)
    assert (joined.ranks[1].exit_code, joined.ranks[1].out_of_memory) == (-9, True)


def test_slurms_tasks_are_agents_where_torchrun_speaks():
    assert codes(TABLE + "srun: error: node1: task 0: Exited with exit code 1\n") == {1: -9}


def test_a_rank_that_only_the_launcher_knows_gets_a_row():
    assert codes(TABLE, rows(1)) == {1: -9}
    assert codes("srun: error: node1: task 9: Killed\n") == {}  # the job has no such rank


def test_aborts_after_a_time_out_or_of_many_are_no_beginning():
    one = "srun: error: node1: task 2: Aborted (core dumped)\n"
    assert codes(one) == {2: -6}
    assert codes(one + "srun: error: node1: task 3: Aborted (core dumped)\n") == {}
    watchdog = (
        "[rank2]:[E1120 10:00:00.000000000 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=31, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600001 "
        "milliseconds before timing out.\n"
    )
    assert codes(watchdog + one) == {}


def test_what_a_box_knows_is_not_overwritten():
    table = rows(life=Life.RUNNING)
    assert codes(TABLE, table) == {}
    table = rows(exit_code=3)
    assert codes(TABLE, table)[1] == 3

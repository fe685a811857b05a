"""Work with files in turns, or in the background, ends on all ranks together."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import CollectiveFailed, CollectiveTimeout, InvalidValue
from tests.unit.training.collectives.ranks import run

RANKS = 4
#: What one turn may take, and what it takes on the slow disk.
LIMIT_S, SLOW_S = 0.8, 0.3


def read_slowly(folder: Path, rank: int) -> int:
    """Return how many ranks read at once; the disk takes its time."""
    own = folder / f"reads{rank}"
    own.touch()
    time.sleep(SLOW_S)
    count = len(list(folder.glob("reads*")))
    own.unlink()
    return count


def take_turns(rank: int, folder: Path) -> list[int]:
    counts = []
    for at_once, per_host in ((1, False), (2, True)):
        with holdfast.staggered("load", at_once, per_host=per_host, timeout=LIMIT_S):
            counts.append(read_slowly(folder, rank))
        assert not list(folder.glob("reads*")), "a rank left before all had read"
        holdfast.comm.barrier("next", timeout=20)
    return counts


@pytest.mark.slow
def test_few_ranks_at_a_time_read_a_slow_disk_without_a_timeout(tmp_path: Path) -> None:
    assert LIMIT_S < RANKS * SLOW_S
    results = run(RANKS, take_turns, tmp_path, tmp_path)
    assert [counts[0] for counts in results] == [1] * RANKS
    assert max(counts[1] for counts in results) == 2


def error_of(function: Callable[[], Any]) -> tuple[str, str, Any]:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - returned to the test
        return type(error).__name__, str(error), getattr(error, "missing", None)
    return "", "", None


def fail_in_turn(rank: int) -> list[tuple[str, str, Any]]:
    def load(error: Exception | None, pause_s: float) -> None:
        with holdfast.staggered("load", 2, timeout=LIMIT_S):
            time.sleep(pause_s if rank == 1 else 0)
            if error is not None and rank == 1:
                raise error

    return [
        error_of(lambda: load(FileNotFoundError("weights.pt"), 0)),
        error_of(lambda: load(None, 2 * LIMIT_S)),
        error_of(lambda: load(None, 0)),
    ]


@pytest.mark.slow
def test_failed_or_slow_turn_ends_the_block_on_all_ranks(tmp_path: Path) -> None:
    results = run(3, fail_in_turn, tmp_path)
    failed, slow, after = zip(*results, strict=True)
    assert [name for name, _, _ in failed] == [
        "CollectiveFailed",
        "FileNotFoundError",
        "CollectiveFailed",
    ]
    assert "staggered 'load' failed: rank 1: FileNotFoundError: weights.pt" in failed[0][1]
    assert {(name, missing) for name, _, missing in slow} == {("CollectiveTimeout", (1,))}
    assert len({text for _, text, _ in slow}) == 1
    assert "rank 1 did not finish within 800 ms" in slow[0][1]
    assert after == (("", "", None),) * 3


def work_in_background(rank: int, folder: Path) -> Any:
    def write() -> str:
        time.sleep(SLOW_S if rank == 0 else 0)
        if rank == 0:
            (folder / "export").write_text("weights")
        return f"by rank {rank}"

    def fail() -> None:
        if rank == 1:
            raise OSError(28, "No space left on device")

    work = holdfast.in_background("export", write, timeout=20)
    was_done = work.done
    result = work.wait()
    failure = error_of(holdfast.in_background("export", fail, timeout=20).wait)
    slow = holdfast.in_background("slow", lambda: time.sleep(2 if rank == 1 else 0), timeout=0.5)
    return rank and was_done, result, (folder / "export").read_text(), failure, error_of(slow.wait)


@pytest.mark.slow
def test_background_work_ends_on_all_ranks_with_the_same_error(tmp_path: Path) -> None:
    results = run(2, work_in_background, tmp_path, tmp_path)
    assert not results[0][0]
    assert [(result, text) for _, result, text, _, _ in results] == [
        ("by rank 0", "weights"),
        ("by rank 1", "weights"),
    ]
    assert results[0][3][0] == CollectiveFailed.__name__
    assert "rank 1: OSError: [Errno 28] No space left on device" in results[0][3][1]
    assert results[1][3][0] == OSError.__name__
    assert [slow[0] for *_, slow in results] == [CollectiveTimeout.__name__] * 2
    assert results[0][4][1:] == results[1][4][1:]
    assert results[0][4][2] == (1,)


def test_single_process_runs_the_work() -> None:
    with holdfast.staggered("load", timeout=1):
        done = True
    work = holdfast.in_background("export", lambda: 7)
    assert (done, work.wait(), work.done) == (True, 7, True)
    with pytest.raises(ZeroDivisionError):
        holdfast.in_background("export", lambda: 1 // 0).wait()
    with pytest.raises(InvalidValue, match="at_once=0"), holdfast.staggered("load", 0):
        pass

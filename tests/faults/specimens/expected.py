"""The expected verdict on each specimen, which is the program of the same name in this folder.

A specimen marks the line to report with the comment ``# GUILTY``, and lines that are accepted
instead with ``# ALSO``; this file contains no line numbers. With ``--healthy`` a specimen disables
its fault and succeeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FOLDER = Path(__file__).parent
PROCESSES = 4  # of every specimen


class Ending(StrEnum):
    """How a specimen ends without intervention."""

    HANG = "hang"
    CRASH = "crash"
    WELL = "well"


@dataclass(frozen=True)
class Expected:
    """The verdict on a specimen; ``causes`` has the best cause first, then others that are accepted."""

    ending: Ending
    causes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    names_line: bool = True  # False if the line is unknown or random
    environment: tuple[tuple[str, str], ...] = ()  # of the run


def hang(rank: int, *causes: str) -> Expected:
    """Expect a hang caused by this rank."""
    return Expected(Ending.HANG, causes, (rank,))


def crash(rank: int, *causes: str, names_line: bool = True) -> Expected:
    """Expect a crash caused by this rank."""
    return Expected(Ending.CRASH, causes, (rank,), names_line)


EXPECTED = {
    "rank0_validates": hang(0, "rank-guarded-collective"),
    "uneven_inputs": hang(3, "uneven-inputs"),
    "uneven_inputs_abort": crash(3, "uneven-inputs", "mismatched-shape"),
    "swallowed_exception": hang(2, "rank-skips-collective", "rank-missing-collective"),
    "order_cycle": hang(1, "collective-order-inversion"),
    "group_left_at_exit": crash(2, "group-left-at-exit", names_line=False),
    "shape_mismatch": crash(3, "mismatched-shape"),
    "shape_mismatch_silent": hang(2, "mismatched-shape"),
    "dtype_mismatch": crash(1, "mismatched-dtype"),
    "operation_mismatch": hang(2, "mismatched-operation"),
    "rank_sleeps": hang(2, "rank-missing-collective"),
    "ddp_rank_sleeps": hang(2, "rank-missing-collective"),
    "fsdp2_rank_sleeps": hang(2, "rank-missing-collective"),
    "slow_file_io": hang(3, "file-io-blocked"),
    "sigkilled": crash(1, "rank-killed", names_line=False),
    "sigstopped": hang(1, "rank-stopped"),
    "early_exit": crash(3, "rank-exits-early", names_line=False),
    "python_exception": crash(1, "python-exception-on-one-rank"),
    "another_model": Expected(Ending.CRASH, ("checkpoint-of-another-model",), (0, 1, 2, 3)),
    # torch raises from a signal handler, at any line that the rank runs when its worker dies.
    "dataloader_worker_died": crash(2, "dataloader-worker-died", names_line=False),
    "dataloader_worker_hangs": hang(2, "dataloader-worker-died"),
    "new_group_by_some": hang(0, "new-group-by-some-ranks"),
    "new_group_shifts_names": Expected(Ending.HANG, ("new-group-by-some-ranks",), (0, 1)),
    "never_ends": Expected(
        Ending.HANG,
        ("stalled-outside-collectives",),
        (1,),
        environment=(("HOLDFAST_ALONE_S", "4"),),
    ),
    "stale_build_lock": Expected(
        Ending.HANG, ("stale-build-lock",), (0,), environment=(("HOLDFAST_COMPILE_S", "4"),)
    ),
    "python_lock_held": hang(1, "python-lock-held"),
    "missing_recv": hang(1, "p2p-without-partner"),
    "straggler": Expected(Ending.WELL),
    "healthy": Expected(Ending.WELL),
    "healthy_sleeping": Expected(Ending.WELL),
}


def place(name: str) -> Path:
    """Return the file of a specimen."""
    return FOLDER / f"{name}.py"


def marked(name: str, mark: str) -> tuple[int, ...]:
    """Return the numbers of the lines that end with ``# <mark>``."""
    lines = place(name).read_text().splitlines()
    return tuple(number for number, line in enumerate(lines, start=1) if line.endswith(f"# {mark}"))


def guilty_line(name: str) -> int:
    """Return the line that the verdict should report."""
    (line,) = marked(name, "GUILTY")
    return line


def lines_accepted(name: str) -> frozenset[int]:
    """Return the guilty line and those that are accepted instead."""
    return frozenset((guilty_line(name), *marked(name, "ALSO")))

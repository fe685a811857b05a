"""What holdfast must say of each specimen: the program beside this file with the same name.

A specimen marks the line that a person would want named by the comment ``# GUILTY``, and lines that a verdict may name
instead by ``# ALSO``; no line number stands in this file. With ``--healthy`` a specimen leaves its fault out and ends
well.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FOLDER = Path(__file__).parent
PROCESSES = 4  # that every specimen is started with


class Ending(StrEnum):
    """What becomes of a specimen where nobody interferes."""

    HANG = "hang"
    CRASH = "crash"
    WELL = "well"


@dataclass(frozen=True)
class Expected:
    """The verdict on a specimen; ``causes`` has the best name first and then those that are right as well."""

    ending: Ending
    causes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    names_line: bool = True  # False where no line can be known, or where it is an accident
    environment: tuple[tuple[str, str], ...] = ()  # that the specimen is run with


def hang(rank: int, *causes: str) -> Expected:
    """A specimen that hangs because of this rank."""
    return Expected(Ending.HANG, causes, (rank,))


def crash(rank: int, *causes: str, names_line: bool = True) -> Expected:
    """A specimen that dies because of this rank."""
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
    # torch raises in the rank from a signal handler, at whatever line the rank is when its worker dies.
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
    "missing_recv": hang(0, "p2p-without-partner"),
    "straggler": Expected(Ending.WELL),
    "healthy": Expected(Ending.WELL),
    "healthy_sleeping": Expected(Ending.WELL),
}


def place(name: str) -> Path:
    """The file of a specimen."""
    return FOLDER / f"{name}.py"


def marked(name: str, mark: str) -> tuple[int, ...]:
    """The numbers of the lines that end with ``# <mark>``."""
    lines = place(name).read_text().splitlines()
    return tuple(number for number, line in enumerate(lines, start=1) if line.endswith(f"# {mark}"))


def guilty_line(name: str) -> int:
    """The line that a person would want named."""
    (line,) = marked(name, "GUILTY")
    return line


def lines_accepted(name: str) -> frozenset[int]:
    """The guilty line and those that a verdict may name instead."""
    return frozenset((guilty_line(name), *marked(name, "ALSO")))

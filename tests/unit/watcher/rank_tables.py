"""Build rank tables for the tests of the rules."""

from __future__ import annotations

from holdfast.core.rank_table import (
    GroupProgress,
    ProcessGroupInfo,
    ProcessState,
    RankState,
    RecordedCall,
    SourceLine,
    ThreadStack,
)

WORLD = "0"
TRAIN = SourceLine("/job/train.py", 41, "train_step")
EVAL = SourceLine("/job/train.py", 77, "evaluate")
LOADER = SourceLine("/job/data.py", 12, "load")


def call(  # noqa: PLR0913 - a row of a table, whose columns are named and mostly default
    sequence: int,
    name: str = "all_reduce",
    *,
    group: str = WORLD,
    site: SourceLine = TRAIN,
    done: bool = False,
    elements: int = 4,
    dtype: str = "float32",
    peer: int | None = None,
    tag: int = 0,
) -> RecordedCall:
    """Return a call entered at second ``sequence``."""
    return RecordedCall(
        group=group,
        sequence=sequence,
        name=name,
        dtype=dtype,
        elements=elements,
        shape=(elements,),
        peer=peer,
        tag=tag,
        site=site,
        entered=float(sequence),
        completed=sequence + 0.5 if done else None,
        tensors=1,
    )


def row(rank: int, *calls: RecordedCall, at: SourceLine | None = None, **more: object) -> RankState:
    """Return a rank with these calls, oldest first; those not done are pending.

    ``at``: the line of its main thread in two samples.
    """
    entered: dict[str, int] = {}
    completed: dict[str, int] = {}
    for one in calls:
        if not one.is_point_to_point:
            entered[one.group] = max(entered.get(one.group, 0), one.sequence)
            completed[one.group] = max(
                completed.get(one.group, 0), one.sequence if one.completed else 0
            )
    stack = (
        (ThreadStack((at,), time=100.0), ThreadStack((at,), time=101.0)) if at is not None else ()
    )
    fields: dict[str, object] = {
        "rank": rank,
        "host": "a",
        "pid": 1000 + rank,
        "life": ProcessState.RUNNING,
        "step": 30,
        "step_p99_s": 0.05,
        "groups": {
            name: GroupProgress(number, completed[name]) for name, number in entered.items()
        },
        "pending": tuple(one for one in calls if one.completed is None),
        "recent": calls,
        "stacks": stack,
        "cpu_share": 0.0 if at is not None else None,
        "io_bytes": 0,
    }
    return RankState(**(fields | more))  # type: ignore[arg-type]


def world(size: int) -> dict[str, ProcessGroupInfo]:
    """Return the default group of ``size`` ranks."""
    return {WORLD: ProcessGroupInfo(WORLD, tuple(range(size)), "default_pg", "gloo")}


def history(until: int, *names_and_sites: tuple[str, SourceLine]) -> tuple[RecordedCall, ...]:
    """Return completed calls 1 to ``until`` that repeat a pattern, by default all_reduce in TRAIN."""
    pattern = names_and_sites or (("all_reduce", TRAIN),)
    chosen = [pattern[(number - 1) % len(pattern)] for number in range(1, until + 1)]
    return tuple(
        call(number, name, site=site, done=True) for number, (name, site) in enumerate(chosen, 1)
    )

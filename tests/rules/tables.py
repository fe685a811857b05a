"""Builds tables of ranks for the tests of the rules: short words for long rows."""

from __future__ import annotations

from holdfast.facts.ranks import Group, GroupProgress, Life, Operation, Place, RankState, Stack

WORLD = "0"
TRAIN = Place("/job/train.py", 41, "train_step")
EVAL = Place("/job/train.py", 77, "evaluate")
LOADER = Place("/job/data.py", 12, "load")


def call(  # noqa: PLR0913 - a row of a table, whose columns are named and mostly left out
    sequence: int,
    name: str = "all_reduce",
    *,
    group: str = WORLD,
    site: Place = TRAIN,
    done: bool = False,
    elements: int = 4,
    dtype: str = "float32",
    peer: int | None = None,
    tag: int = 0,
) -> Operation:
    """One call; entered at second ``sequence``."""
    return Operation(
        group=group, sequence=sequence, name=name, dtype=dtype, elements=elements, shape=(elements,), peer=peer,
        tag=tag, site=site, entered=float(sequence), completed=sequence + 0.5 if done else None, tensors=1,
    )  # fmt: skip


def row(rank: int, *calls: Operation, at: Place | None = None, **more: object) -> RankState:
    """A rank with these calls, oldest first; those not done are pending.

    ``at``: where its main thread sits, twice seen.
    """
    entered: dict[str, int] = {}
    completed: dict[str, int] = {}
    for one in calls:
        if not one.is_point_to_point:
            entered[one.group] = max(entered.get(one.group, 0), one.sequence)
            completed[one.group] = max(completed.get(one.group, 0), one.sequence if one.completed else 0)
    stack = (Stack((at,), time=100.0), Stack((at,), time=101.0)) if at is not None else ()
    fields: dict[str, object] = {
        "rank": rank, "host": "a", "pid": 1000 + rank, "life": Life.RUNNING, "step": 30, "step_p99_s": 0.05,
        "groups": {name: GroupProgress(number, completed[name]) for name, number in entered.items()},
        "pending": tuple(one for one in calls if one.completed is None), "recent": calls, "stacks": stack,
        "cpu_share": 0.0 if at is not None else None, "io_bytes": 0,
    }  # fmt: skip
    return RankState(**(fields | more))  # type: ignore[arg-type]


def world(size: int) -> dict[str, Group]:
    """The default group of ``size`` ranks."""
    return {WORLD: Group(WORLD, tuple(range(size)), "default_pg", "gloo")}


def history(until: int, *names_and_sites: tuple[str, Place]) -> tuple[Operation, ...]:
    """Completed calls 1 to ``until``, repeating a pattern (all_reduce in the training step where none is given)."""
    pattern = names_and_sites or (("all_reduce", TRAIN),)
    chosen = [pattern[(number - 1) % len(pattern)] for number in range(1, until + 1)]
    return tuple(call(number, name, site=site, done=True) for number, (name, site) in enumerate(chosen, 1))

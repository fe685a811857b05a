"""A timed-out call never writes to its caller's tensors, even after the late rank enters it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from holdfast import comm
from holdfast.core.errors import HoldfastError
from holdfast.training.collectives import bounded_wait, gather
from holdfast.training.collectives.backend_calls import uses_gloo
from tests.unit.training.collectives.ranks import run

pytestmark = pytest.mark.slow

#: Larger than what ranks reduce unchunked in shared memory; 16 MiB and more are chunked.
SMALL, MIDDLE, LARGE = 1000, 900_000, (1 << 22) + 7
#: Larger than what malloc keeps for the next scratch tensor.
HUGE = 9_000_000
LATE = 1
WARM_S, LATE_S, RUN_S = 30, 20, 110
#: Wait for late writes of gloo after the late rank's own call has returned.
SETTLE_S = 0.5


class Prepared(NamedTuple):
    """A call, which takes a timeout in seconds, and the ``tensors`` that it may write."""

    tensors: list[torch.Tensor]
    call: Callable[[float], Any]


Prepare = Callable[[int, Any], Prepared]


class Case(NamedTuple):
    """A case; ``warm``: successful calls before the one that times out (trial turns of ``auto``).

    ``enters``: the late rank's call succeeds, because the others' operation is still pending.
    """

    prepare: Prepare
    warm: int = 1
    enters: bool = True
    timeout_s: float = 0.3


def reduced(
    size: int, warm: int = 1, *, enters: bool = True, timeout_s: float = 0.3, **options: Any
) -> Case:
    def prepare(_: int, group: Any) -> Prepared:
        tensor = torch.ones(size)
        return Prepared(
            [tensor],
            lambda limit_s: comm.all_reduce(tensor, group=group, timeout=limit_s, **options),
        )

    return Case(prepare, warm, enters, timeout_s)


def safe(_: int, group: Any) -> Prepared:
    tensor = torch.ones(SMALL)

    def call(limit_s: float) -> None:
        if not comm.safe_all_reduce(tensor, group=group, timeout=limit_s, chunk=None):
            raise TimeoutError

    return Prepared([tensor], call)


def strided(_: int, group: Any) -> Prepared:
    whole = torch.ones(SMALL, 2)
    return Prepared(
        [whole],
        lambda limit_s: comm.all_reduce(whole[:, 0], group=group, timeout=limit_s, chunk=None),
    )


def shared(_: int, group: Any) -> Prepared:
    tensor = comm.shared_tensor((MIDDLE,), group=group)
    return Prepared([tensor], lambda limit_s: comm.all_reduce(tensor, group=group, timeout=limit_s))


def many(_: int, group: Any) -> Prepared:
    """Prepare one dtype with several tensors, and one with a single tensor (no packing)."""
    tensors = [torch.ones(3, 4), torch.ones(7), torch.ones(SMALL, dtype=torch.float64)]
    return Prepared(
        tensors, lambda limit_s: comm.all_reduce_many(tensors, group=group, timeout=limit_s)
    )


def lone(_: int, group: Any) -> Prepared:
    tensor = torch.ones(SMALL)
    return Prepared(
        [tensor], lambda limit_s: comm.all_reduce_many([tensor], group=group, timeout=limit_s)
    )


def metrics(_: int, group: Any) -> Prepared:
    value = torch.ones(())
    return Prepared(
        [value], lambda limit_s: comm.sync_metrics({"loss": value}, group=group, timeout=limit_s)
    )


def gathered(
    size: int,
    warm: int = 1,
    *,
    enters: bool = True,
    listed: bool = False,
    inside: bool = False,
    gloo: bool = True,
) -> Case:
    """Return an all_gather case; without ``gloo`` as on backends with a native gather."""

    def prepare(rank: int, group: Any) -> Prepared:
        whole = torch.ones(dist.get_world_size() * size)
        parts = whole.view(-1, size)
        own = parts[rank] if inside else torch.full((size,), rank + 2.0)
        output = list(parts.unbind()) if listed else whole

        def call(limit_s: float) -> None:
            with patch.object(gather, "uses_gloo", uses_gloo if gloo else lambda *_: False):
                comm.all_gather(output, own, group, timeout=limit_s)

        return Prepared([whole], call)

    return Case(prepare, warm, enters)


def scattered(
    dtype: torch.dtype, op: Any, warm: int, *, enters: bool = True, listed: bool = False
) -> Case:
    def prepare(_: int, group: Any) -> Prepared:
        whole = torch.ones(dist.get_world_size(), MIDDLE, dtype=dtype)
        part = torch.ones(MIDDLE, dtype=dtype)
        parts = list(whole.unbind()) if listed else whole.view(-1)
        return Prepared(
            [part, whole],
            lambda limit_s: comm.reduce_scatter(part, parts, op, group, timeout=limit_s),
        )

    return Case(prepare, warm, enters)


def broadcast(size: int, chunk: Any = "auto", *, step: int = 1) -> Case:
    """Return a case in which no data move, because the ranks wait for each other first."""

    def prepare(rank: int, group: Any) -> Prepared:
        tensor = torch.full((size * step,), float(rank))
        return Prepared(
            [tensor],
            lambda limit_s: comm.broadcast(
                tensor[::step], LATE, group, timeout=limit_s, chunk=chunk
            ),
        )

    return Case(prepare, enters=False)


def hierarchical(nodes: list[list[int]], size: int = MIDDLE, **options: Any) -> Case:
    def prepare(_: int, group: Any) -> Prepared:
        hierarchy = comm.Hierarchy(group, nodes=nodes)
        tensor = torch.ones(size)
        return Prepared(
            [tensor], lambda limit_s: hierarchy.all_reduce(tensor, timeout=limit_s, **options)
        )

    return Case(prepare, enters=min(map(len, nodes)) == max(map(len, nodes)))


BAND = dist.ReduceOp.BAND
CASES: dict[str, Case] = {
    "safe_all_reduce": Case(safe),
    "all_reduce, one call": reduced(SMALL, chunk=None),
    "all_reduce of 36 MB, one call": reduced(HUGE, chunk=None),
    "all_reduce, one call of a known shape": reduced(SMALL, 3, chunk=None, timeout_s=1.2),
    "all_reduce in chunks": reduced(SMALL, chunk=100, enters=False),
    "all_reduce in two chunks": reduced(SMALL, chunk=SMALL // 2),
    "all_reduce, bf16": reduced(SMALL, wire="bf16"),
    "all_reduce, auto, one call": reduced(SMALL, 3),
    "all_reduce, auto, exchange": reduced(SMALL, 4),
    "all_reduce, auto, shared memory": reduced(SMALL, 5),
    "large all_reduce, auto, one call": reduced(LARGE, 3),
    "large all_reduce, auto, chunks": reduced(LARGE, 4, enters=False),
    "large all_reduce, auto, shared memory": reduced(LARGE, 5, enters=False),
    "all_reduce of a strided tensor": Case(strided),
    "all_reduce of a shared tensor, one call": Case(shared, 2),
    "all_reduce of a shared tensor, shared memory": Case(shared, 3, enters=False),
    "all_reduce_many": Case(many, 3, enters=False),
    "all_reduce_many of one tensor": Case(lone, 3),
    "sync_metrics": Case(metrics),
    "all_gather": gathered(MIDDLE, 2),
    "all_gather, shared memory": gathered(MIDDLE, 3, enters=False),
    "all_gather of the output's own part": gathered(MIDDLE, 2, inside=True),
    "all_gather into a list": gathered(MIDDLE, 2, listed=True),
    "large all_gather": gathered(LARGE, 2, enters=False),
    "all_gather by another backend": gathered(SMALL, gloo=False),
    "all_gather by another backend into a list": gathered(SMALL, gloo=False, listed=True),
    "reduce_scatter": scattered(torch.float32, dist.ReduceOp.SUM, 2, enters=False),
    "reduce_scatter, shared memory": scattered(torch.float32, dist.ReduceOp.SUM, 3, enters=False),
    "reduce_scatter by the backend": scattered(torch.int32, BAND, 1),
    "reduce_scatter of a list by the backend": scattered(torch.int32, BAND, 1, listed=True),
    "broadcast": broadcast(SMALL),
    "broadcast in one call": broadcast(LARGE, None),
    "broadcast of a strided tensor": broadcast(SMALL, step=2),
    "large broadcast": broadcast(3 * MIDDLE),
    "broadcast in chunks": broadcast(SMALL, 100),
    "Hierarchy, every rank a node": hierarchical([[0], [1]]),
    "Hierarchy of one node": hierarchical([[0, 1]]),
}
#: Operations that differ for more than two ranks.
OF_THREE: dict[str, Case] = {
    "all_reduce, one call": reduced(SMALL, chunk=None),
    "small all_gather": gathered(SMALL),
    "large broadcast": broadcast(LARGE),
    "Hierarchy": hierarchical([[0, LATE], [2]]),
    "Hierarchy in chunks": hierarchical([[0, LATE], [2]], chunk=1000, window=2),
}


class TimeoutOutcome(NamedTuple):
    """Whether a punctual rank timed out, and its tensors' bits were unchanged at return and later."""

    timed_out: bool
    kept_at_return: bool
    kept_later: bool


def enter_late(rank: int, table: str, folder: str) -> dict[str, Any]:
    """Return ``TimeoutOutcome`` of each case; on the late rank, whether its call succeeded."""
    _, cases = TABLES[table]
    prepared = {}
    for name, case in cases.items():
        prepared_call = prepared[name] = case.prepare(rank, dist.new_group())
        for _ in range(case.warm):
            prepared_call.call(WARM_S)
        for tensor in prepared_call.tensors:
            tensor.fill_(rank + 1)
    dist.barrier()
    others = [other for other in range(dist.get_world_size()) if other != LATE]
    if rank == LATE:
        wait_for([Path(folder, f"timed_out{other}") for other in others])
        succeeded = {
            name: enter(cases[name], prepared_call) for name, prepared_call in prepared.items()
        }
        Path(folder, "entered").touch()
        return succeeded
    before = {name: copies(prepared_call) for name, prepared_call in prepared.items()}
    timed_out = {
        name: failed(prepared_call.call, cases[name].timeout_s)
        for name, prepared_call in prepared.items()
    }
    at_return = {name: copies(prepared_call) for name, prepared_call in prepared.items()}
    Path(folder, f"timed_out{rank}").touch()
    wait_for([Path(folder, "entered")])
    time.sleep(SETTLE_S)
    later = {name: copies(prepared_call) for name, prepared_call in prepared.items()}
    return {
        name: TimeoutOutcome(
            timed_out[name], before[name] == at_return[name], at_return[name] == later[name]
        )
        for name in cases
    }


def enter(case: Case, prepared_call: Prepared) -> bool:
    """Enter a call that the others have abandoned; return whether it succeeds."""
    if not case.enters:
        return not failed(prepared_call.call, LATE_S)
    # Complete the pending operation before reading that the others have given it up.
    with (
        patch.object(bounded_wait, "_FIRST_WAIT", timedelta(seconds=LATE_S)),
        patch.object(bounded_wait, "_finish_stage", lambda _: None),
    ):
        return not failed(prepared_call.call, LATE_S)


def copies(prepared_call: Prepared) -> list[bytes]:
    return [
        tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        for tensor in prepared_call.tensors
    ]


def failed(call: Callable[[float], Any], limit_s: float) -> bool:
    try:
        call(limit_s)
    except (HoldfastError, TimeoutError):
        return True
    return False


def wait_for(files: list[Path]) -> None:
    until = time.monotonic() + RUN_S
    while not all(file.exists() for file in files):
        assert time.monotonic() < until, files
        time.sleep(0.05)


TABLES = {"two": (2, CASES), "three": (3, OF_THREE)}


@pytest.fixture(scope="module")
def results_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[dict[str, Any]]]:
    """Return each rank's results in the cases of a table, which run together, once."""

    @cache
    def run_table(table: str) -> list[dict[str, Any]]:
        folder = tmp_path_factory.mktemp(table)
        results = run(TABLES[table][0], enter_late, folder, table, str(folder), limit_s=RUN_S)
        assert all(isinstance(each, dict) for each in results), results
        return results

    return run_table


@pytest.mark.parametrize(
    ("table", "name"), [(table, name) for table, (_, cases) in TABLES.items() for name in cases]
)
def test_timed_out_call_leaves_the_tensors_unchanged(
    results_of: Callable[[str], list[dict[str, Any]]], table: str, name: str
) -> None:
    seen = results_of(table)
    for rank, each in enumerate(seen):
        if rank != LATE:
            assert each[name] == TimeoutOutcome(
                timed_out=True, kept_at_return=True, kept_later=True
            )
    if TABLES[table][1][name].enters:
        assert seen[LATE][name], (
            "the late rank did not enter the pending operation: the case proves nothing"
        )

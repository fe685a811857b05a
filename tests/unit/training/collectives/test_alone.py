"""A single process without a process group: every public call returns what one rank would get."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import holdfast
from holdfast import comm
from holdfast.core.errors import InvalidValue


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert not dist.is_initialized()


def ones() -> torch.Tensor:
    return torch.ones(2, 3)


def synced_mean() -> float:
    torchmetrics = pytest.importorskip("torchmetrics")
    metric = torchmetrics.MeanMetric()
    metric.update(2.0)
    with comm.synced(metric):
        return float(metric.compute())


#: The call of each name of ``comm.__all__``, and its result as a list where it is a tensor.
CALLS: dict[str, tuple[Callable[[], Any], Any]] = {
    "all_reduce": (lambda: comm.all_reduce(ones(), dist.ReduceOp.AVG), ones()),
    "safe_all_reduce": (lambda: comm.safe_all_reduce(ones()), True),
    "all_reduce_many": (lambda: comm.all_reduce_many([ones()])[0], ones()),
    "sync_metrics": (
        lambda: comm.sync_metrics({"b": torch.tensor(2.5), "a": 3}, largest={"b"}),
        {"b": 2.5, "a": 3.0},
    ),
    "agree": (
        lambda: [comm.agree(1), comm.agree(0, "all"), comm.agree(2.5, "min")],
        [True, False, 2.5],
    ),
    "Decision": (
        lambda: comm.agree(value=True, reason="full disk"),
        comm.Decision(value=True, reasons={0: "full disk"}),
    ),
    "barrier": (lambda: comm.barrier("end"), None),
    "broadcast": (lambda: comm.broadcast(ones()), ones()),
    "all_gather": (lambda: comm.all_gather(torch.zeros(2, 3), ones()), ones()),
    "reduce_scatter": (lambda: comm.reduce_scatter(torch.zeros(6), [ones()]), torch.ones(6)),
    "lockstep": (lambda: comm.lockstep(1), None),
    "shared_tensor": (lambda: comm.shared_tensor((2, 3)), torch.zeros(2, 3)),
    "Hierarchy": (lambda: comm.Hierarchy().all_reduce(ones()), ones()),
    "rebuild": (comm.rebuild, None),
    "compress": (lambda: comm.compress(torch.nn.Linear(2, 2)), None),
    "synced": (synced_mean, 2.0),
}


def test_every_public_call_is_tested() -> None:
    assert set(CALLS) == set(comm.__all__)


@pytest.mark.parametrize("name", CALLS)
def test_call_is_a_no_op_with_the_result_of_one_rank(name: str) -> None:
    call, expected = CALLS[name]
    result = call()
    if isinstance(expected, torch.Tensor):
        assert torch.equal(result, expected)
    else:
        assert result == expected


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda: comm.all_reduce(ones().to_sparse()), "sparse"),
        (lambda: comm.all_gather(torch.zeros(5), ones()), "5 elements"),
        (lambda: comm.broadcast(ones(), src=1), "no rank 1"),
        (lambda: comm.sync_metrics({"loss": "high"}), "not a number"),
        (lambda: comm.all_reduce(ones(), chunk=0), "chunk=0"),
        (lambda: comm.agree(1.0, "max", reason="x"), "no reasons"),
    ],
)
def test_invalid_call_is_refused_as_with_peers(call: Callable[[], Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        call()


def test_rank_of_a_larger_job_needs_its_process_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidValue) as caught:
        comm.all_reduce(ones())
    assert str(caught.value) == (
        "invalid collective call: there is no process group yet; "
        "call torch.distributed.init_process_group first"
    )


def test_gradient_reduction_by_groups_changes_nothing() -> None:
    hierarchy = holdfast.reduce_by_groups(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    assert hierarchy.nodes == ((0,),)

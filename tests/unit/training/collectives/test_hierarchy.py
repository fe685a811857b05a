"""Hierarchy.all_reduce equals a flat one for any layout, dtype, operation, shape and chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import comm
from holdfast.core.errors import CollectiveTimeout, GroupBroken, InvalidValue
from holdfast.training.collectives.hierarchy import Hierarchy
from tests.unit.training.collectives.ranks import run

pytestmark = pytest.mark.slow

LAYOUTS = [
    [[0, 1], [2, 3], [4]],
    [[0, 1, 2], [3, 4]],
    [[0, 1, 2, 3], [4]],
    [[4, 0], [3, 1, 2]],  # not in the order of ranks
    [[0], [1], [2], [3], [4]],
    [[0, 1, 2, 3, 4]],
]
CASES = st.tuples(
    st.integers(0, len(LAYOUTS) - 1),
    st.sampled_from([(1,), (7,), (30, 31), (3, 5, 7), (9000,), (20_011,), (0,)]),
    st.sampled_from([1, 2, 1000, 4096, 1 << 20]),  # elements of a chunk
    st.integers(1, 5),  # chunks in flight
    st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "bfloat16"]),
    st.sampled_from(["SUM", "MAX", "MIN", "PRODUCT"]),
    st.booleans(),  # transposed
)


def reduce_cases(rank: int, cases: list[tuple[int, Any, int, int, str, str, bool]]) -> list[str]:
    made = [Hierarchy(nodes=nodes, timeout=30) for nodes in LAYOUTS]
    wrong = []
    for seed, (layout, shape, chunk, window, dtype, op, transposed) in enumerate(cases):
        generator = torch.Generator().manual_seed(seed * 16 + rank)
        size = torch.Size(shape).numel()
        if size > 500 * chunk:
            chunk = 1000  # noqa: PLW2901 - thousands of chunks take long
        whole = torch.randn(shape, generator=generator) + 1.5
        own = (whole * (1 if dtype.startswith(("float", "bf")) else 3)).to(getattr(torch, dtype))
        own = own.t() if transposed and own.dim() == 2 else own
        flat = own.clone().contiguous()
        operation = getattr(dist.ReduceOp, op)
        dist.all_reduce(flat, operation)
        back = made[layout].all_reduce(own, operation, chunk=chunk, window=window, timeout=30)
        everyone = [torch.empty_like(flat) for _ in range(5)]
        dist.all_gather(everyone, back.contiguous())
        exact = op in ("MAX", "MIN") or not flat.is_floating_point()
        tolerance = (
            {"rtol": 0.05, "atol": 0.2} if dtype == "bfloat16" else {"rtol": 1e-4, "atol": 1e-4}
        )
        near = torch.equal(back, flat) if exact else torch.allclose(back, flat, **tolerance)
        if (
            back is not own
            or not near
            or not all(torch.equal(each, everyone[0]) for each in everyone)
        ):
            wrong.append(f"{LAYOUTS[layout]} {shape} {chunk} {window} {dtype} {op}")
    return wrong


@given(st.lists(CASES, min_size=60, max_size=60))
@settings(max_examples=2, deadline=None)
def test_hierarchical_equals_flat_all_reduce(
    tmp_path_factory: pytest.TempPathFactory, cases: list[Any]
) -> None:
    assert run(5, reduce_cases, tmp_path_factory.mktemp("nodes"), cases) == [[]] * 5


def create_for_all_and_for_subgroup(rank: int) -> Any:
    """All ranks share a host; a subgroup has its own hierarchy."""
    single_node = Hierarchy()
    group = dist.new_group([1, 2, 3])
    total = single_node.all_reduce(torch.tensor([rank])).item()
    if rank == 0:
        return single_node.nodes, total, None
    part = Hierarchy(group, nodes=[[3], [1, 2]])
    return single_node.nodes, total, part.all_reduce(torch.tensor([rank]), dist.ReduceOp.MAX).item()


def test_nodes_default_to_hosts_and_subgroups_work(tmp_path: Path) -> None:
    nodes = ((0, 1, 2, 3),)
    assert run(4, create_for_all_and_for_subgroup, tmp_path) == [
        (nodes, 6, None),
        *[(nodes, 6, 3)] * 3,
    ]


def rank_1_is_missing(rank: int) -> Any:
    with pytest.raises(InvalidValue, match="must contain each of the ranks"):
        Hierarchy(nodes=[[0, 1], [1]])
    made = Hierarchy(nodes=[[0, 1], [2]], timeout=30)
    made.all_reduce(torch.ones(2), timeout=30)
    with pytest.raises(InvalidValue, match="choose from SUM"):
        made.all_reduce(torch.ones(2), dist.ReduceOp.AVG)
    if rank != 1:
        with pytest.raises(CollectiveTimeout) as caught:
            made.all_reduce(torch.ones(2), timeout=1.5)
        with pytest.raises(GroupBroken):
            made.all_reduce(torch.ones(2))
        missing = caught.value.missing
    dist.barrier()
    return missing if rank != 1 else None, comm.all_reduce(torch.tensor([rank])).item()


def test_missing_rank_is_reported_and_the_default_group_still_works(tmp_path: Path) -> None:
    assert run(3, rank_1_is_missing, tmp_path) == [((1,), 3), (None, 3), ((1,), 3)]

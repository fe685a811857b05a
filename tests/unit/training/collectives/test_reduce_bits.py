"""Exchange and shared memory on real ranks: the bits of a sum in rank order, on all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.training.collectives.algorithms import exchange
from holdfast.training.collectives.bounded_wait import begin_call
from holdfast.training.collectives.groups.group_info import state_of
from holdfast.training.collectives.shared_memory import transport
from holdfast.training.collectives.shared_memory.transport import shared_tensor
from tests.unit.training.collectives.ranks import run

LIMIT_S = 20
DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64"]
OPS = ["SUM", "MIN", "MAX", "PRODUCT", "AVG"]

FUNCTIONS = {
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "PRODUCT": torch.mul,
    "SUM": torch.add,
    "AVG": torch.add,
}


def random(size: int, dtype: str, seed: int, rank: int) -> torch.Tensor:
    """Return numbers whose sums are rounded if the dtype is floating-point."""
    generator = torch.Generator().manual_seed(seed * 16 + rank)
    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(size, generator=generator).to(kind)
    return torch.randint(0, 7, (size,), generator=generator).to(kind)


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy())


def same_everywhere(tensor: torch.Tensor) -> bool:
    """Return whether all ranks have these bits."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, bits(tensor))
    return len(set(everyone)) == 1


def reduce_copy(how: str, tensor: torch.Tensor, op: Any) -> torch.Tensor:
    state = state_of(None)
    call = begin_call(state, f"{how} of {tensor.numel()} {tensor.dtype} {op}", LIMIT_S)
    flat = tensor.clone()
    if how == "exchange":
        exchange.reduce_by_exchange(flat, op, call)
    else:
        assert transport.is_available(call)
        assert transport.can_reduce(flat, op)
        transport.reduce_in_memory(flat, op, call)
    return flat


def reduce_cases(rank: int, cases: list[tuple[int, str, str]]) -> list[Any]:
    wrong = []
    for seed, (size, dtype, op) in enumerate(cases):
        if op == "AVG" and "int" in dtype:
            continue
        tensor, operation = random(size, dtype, seed, rank), getattr(dist.ReduceOp, op)
        expected = tensor.clone()
        dist.all_reduce(expected, operation)
        in_order = random(size, dtype, seed, 0)
        for other in range(1, dist.get_world_size()):
            in_order = FUNCTIONS[op](in_order, random(size, dtype, seed, other))
        if op == "AVG":
            in_order /= dist.get_world_size()
        shared = shared_tensor((size + 3,), tensor.dtype)[3:]
        shared.copy_(tensor)
        call = begin_call(state_of(None), f"all_reduce {size} {dtype} {op}", LIMIT_S)
        transport.reduce_in_memory(shared, operation, call)
        for how, got in [
            ("exchange", reduce_copy("exchange", tensor, operation)),
            ("memory", reduce_copy("memory", tensor, operation)),
            ("shared tensor", shared),
        ]:
            exact = (
                dist.get_world_size() == 2 or not tensor.is_floating_point() or op in ("MIN", "MAX")
            )
            if (
                bits(got) != bits(in_order)
                or (exact and not torch.equal(got, expected))
                or not same_everywhere(got)
            ):
                wrong.append((how, size, dtype, op))
    return wrong


SIZES = st.one_of(st.integers(1, 40), st.integers(1, 40_000), st.integers(500_000, 700_000))


@given(
    st.lists(
        st.tuples(SIZES, st.sampled_from(DTYPES), st.sampled_from(OPS)), min_size=25, max_size=25
    )
)
@settings(max_examples=1, deadline=None, phases=[Phase.generate])
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.matrix), 4])
def test_reductions_have_the_bits_of_a_sum_in_rank_order(
    ranks: int, tmp_path_factory: pytest.TempPathFactory, cases: list[Any]
) -> None:
    assert run(ranks, reduce_cases, tmp_path_factory.mktemp("reductions"), cases) == [[]] * ranks

"""Every algorithm equals one call, with equal bits on all ranks, which choose jointly."""

from __future__ import annotations

import logging
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import comm
from holdfast.core.errors import InvalidValue
from holdfast.training.collectives import algorithm_choice
from holdfast.training.collectives.algorithm_choice import ReduceChoices
from holdfast.training.collectives.algorithms.selection import CHUNK, candidate_algorithms
from holdfast.training.collectives.bounded_wait import begin_call
from holdfast.training.collectives.groups.group_info import state_of
from tests.unit.training.collectives.ranks import run

CASES = st.tuples(
    st.one_of(st.integers(1, 300), st.integers(1, 70_000), st.just(4 * CHUNK + 3)),  # elements
    st.sampled_from(["float32", "float64", "float16", "int64", "int32", "uint8", "bfloat16"]),
    st.sampled_from(["SUM", "MAX", "MIN", "PRODUCT"]),
)


def generated(rank: int, seed: int, size: int, dtype: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 16 + rank)
    if dtype.startswith(("float", "bfloat")):
        return torch.rand(size, generator=generator).to(getattr(torch, dtype))
    return torch.randint(0, 5, (size,), generator=generator).to(getattr(torch, dtype))


def run_algorithms(rank: int, cases: list[tuple[int, str, str]]) -> list[Any]:
    """Return each case's algorithms: name, relative error to one call, checksum of the bits."""
    results = []
    for seed, (size, dtype, op_name) in enumerate(cases):
        op = getattr(dist.ReduceOp, op_name)
        expected = generated(rank, seed, size, dtype)
        dist.all_reduce(expected, op)
        state = state_of(None)
        call = begin_call(state, f"case {seed}", 30)
        for algorithm in candidate_algorithms(expected, op, call):
            flat = generated(rank, seed, size, dtype)
            algorithm.reduce(flat, op, call)
            off = (flat.double() - expected.double()).abs() / expected.double().abs().clamp(
                min=1e-3
            )
            results.append(
                (
                    seed,
                    algorithm.name,
                    off.max().item(),
                    zlib.crc32(flat.view(torch.uint8).numpy().tobytes()),
                )
            )
    return results


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.matrix), 3])
@given(st.lists(CASES, min_size=40, max_size=40))
@settings(max_examples=1, deadline=None)
def test_every_algorithm_equals_one_call(
    size: int, tmp_path_factory: Any, cases: list[Any]
) -> None:
    results = run(size, run_algorithms, tmp_path_factory.mktemp("algorithms"), cases)
    for each in zip(*results, strict=True):
        assert len(set(each)) == 1, each  # equal bits and errors on all ranks
        seed, algorithm, off, _ = each[0]
        _, dtype, op = cases[seed]
        exact = size == 2 or op in ("MAX", "MIN") or "int" in dtype
        rounding = {"float16": 4e-3, "bfloat16": 4e-2}.get(dtype, 1e-6)
        assert off <= (0 if exact else rounding), (algorithm, cases[seed])
    assert {algorithm for _, algorithm, _, _ in results[0]} >= {"one call", "exchange"}


def choose(_rank: int) -> Any:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("holdfast.comm").addHandler(handler)
    logging.getLogger("holdfast.comm").setLevel(logging.INFO)
    state = state_of(None)
    right = []
    for _ in range(5 * algorithm_choice.TURNS):
        tensor = torch.ones(1000)
        comm.all_reduce(tensor)
        right.append(bool((tensor == 2).all()))
    torch.use_deterministic_algorithms(mode=True)
    for _ in range(5 * algorithm_choice.TURNS):
        comm.all_reduce(torch.ones(10, dtype=torch.float64))
    return (
        all(right),
        {key: choice.name for key, choice in state.cache[ReduceChoices].items()},
        [line.partition(" (")[0] for line in messages],
        messages,
    )


def test_all_ranks_choose_the_same_algorithm(tmp_path: Path) -> None:
    first, second = run(2, choose, tmp_path)
    assert first == second
    right, chosen, titles, messages = first
    assert right
    # Deterministic algorithms: the same bits in every run.
    assert chosen[(80).bit_length(), torch.float64, True] == "one call"
    algorithm = chosen[(4000).bit_length(), torch.float32, True]
    assert titles == [f"all_reduce of about 4,000 bytes in group '0': fastest is {algorithm}"]
    assert "one call" in messages[0]
    assert " us" in messages[0]


def send_bf16(_rank: int) -> Any:
    tensor = torch.linspace(1, 2, 10_001)
    comm.all_reduce(tensor, wire="bf16", chunk=1000)
    strided = torch.linspace(1, 2, 10_001)[::2]
    comm.all_reduce(strided, wire="bf16")
    with pytest.raises(InvalidValue, match="float32 or float64"):
        comm.all_reduce(torch.ones(3, dtype=torch.int32), wire="bf16")
    with pytest.raises(InvalidValue, match="'fp8'"):
        comm.all_reduce(torch.ones(3), wire="fp8")  # type: ignore[arg-type]
    comm.all_reduce(torch.ones(3), timeout="20s")
    with pytest.raises(InvalidValue, match="never"):
        comm.all_reduce(torch.ones(3), timeout="never")
    off = (tensor / (2 * torch.linspace(1, 2, 10_001)) - 1).abs().max().item()
    return off, torch.equal(strided, tensor[::2])


REFUSED: dict[str, Any] = {
    "sparse": lambda: comm.all_reduce(torch.ones(4).to_sparse()),
    "gradient": lambda: comm.all_reduce(torch.ones(4, requires_grad=True)),
    "timeout": lambda: comm.all_reduce(torch.ones(4), timeout=-1),
    "chunk": lambda: comm.all_reduce(torch.ones(4), chunk=0),
    "no backend for meta": lambda: comm.all_reduce(torch.ones(4, device="meta")),
    "does not reduce int16": lambda: comm.all_reduce(torch.ones(4, dtype=torch.int16)),
    "PRODUCT is undefined for complex": lambda: comm.all_reduce(
        torch.ones(4, dtype=torch.complex64), dist.ReduceOp.PRODUCT
    ),
    "BAND needs integers": lambda: comm.all_reduce(torch.ones(4), dist.ReduceOp.BAND),
    "AVG needs a floating-point dtype": lambda: comm.all_reduce_many(
        [torch.ones(4, dtype=torch.int32)], dist.ReduceOp.AVG
    ),
}


def rejected_calls(rank: int) -> Any:
    """Return the error of each call, and results of later calls in the group."""
    texts = []
    for call in REFUSED.values():
        with pytest.raises(InvalidValue) as caught:
            call()
        texts.append(str(caught.value))
    numbers = comm.all_reduce(torch.tensor([1 + 2j, 3j]) * (rank + 1)).tolist()
    truths = comm.all_reduce(torch.tensor([rank == 0, False])).tolist()
    return texts, numbers, truths


def test_invalid_tensors_are_rejected_alike_and_the_group_still_works(tmp_path: Path) -> None:
    first, second = run(2, rejected_calls, tmp_path)
    assert first == second
    texts, numbers, truths = first
    for part, sentence in zip(REFUSED, texts, strict=True):
        assert part in sentence, (part, sentence)
    assert numbers == [3 + 6j, 9j]
    assert truths == [True, False]


def test_bf16_on_the_wire(tmp_path: Path) -> None:
    results = run(2, send_bf16, tmp_path)
    assert results[0] == results[1]
    off, same = results[0]
    assert 0 < off < 2**-7
    assert same

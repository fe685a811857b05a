"""Every way to reduce gives what one call gives, the same bits on all ranks; which one is taken is decided by all."""

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
from holdfast.errors import BadValue
from holdfast.runtime.comm import choice
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.waiting import begin
from holdfast.runtime.comm.ways import PIECE, ways_for
from tests.runtime.comm.ranks import run

CASES = st.tuples(
    st.one_of(st.integers(1, 300), st.integers(1, 70_000), st.just(4 * PIECE + 3)),  # elements
    st.sampled_from(["float32", "float64", "float16", "int64", "int32", "uint8", "bfloat16"]),
    st.sampled_from(["SUM", "MAX", "MIN", "PRODUCT"]),
)


def generated(rank: int, seed: int, size: int, dtype: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed * 16 + rank)
    if dtype.startswith(("float", "bfloat")):
        return torch.rand(size, generator=generator).to(getattr(torch, dtype))
    return torch.randint(0, 5, (size,), generator=generator).to(getattr(torch, dtype))


def all_ways(rank: int, cases: list[tuple[int, str, str]]) -> list[Any]:
    """For each case and way: its name, how far it is from one call, and a checksum of its bits."""
    found = []
    for seed, (size, dtype, op_name) in enumerate(cases):
        op = getattr(dist.ReduceOp, op_name)
        expected = generated(rank, seed, size, dtype)
        dist.all_reduce(expected, op)
        state = state_of(None)
        call = begin(state, f"case {seed}", 30)
        for way in ways_for(expected, op, call):
            flat = generated(rank, seed, size, dtype)
            way.reduce(flat, op, call)
            off = (flat.double() - expected.double()).abs() / expected.double().abs().clamp(min=1e-3)
            found.append((seed, way.name, off.max().item(), zlib.crc32(flat.view(torch.uint8).numpy().tobytes())))
    return found


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.matrix), 3])
@given(st.lists(CASES, min_size=40, max_size=40))
@settings(max_examples=1, deadline=None)
def test_every_way_gives_what_one_call_gives(size: int, tmp_path_factory: Any, cases: list[Any]) -> None:
    results = run(size, all_ways, tmp_path_factory.mktemp("ways"), cases)
    for each in zip(*results, strict=True):
        assert len(set(each)) == 1, each  # the same bits, and the same distance, on all ranks
        seed, way, off, _ = each[0]
        _, dtype, op = cases[seed]
        exact = size == 2 or op in ("MAX", "MIN") or "int" in dtype
        rounding = {"float16": 4e-3, "bfloat16": 4e-2}.get(dtype, 1e-6)
        assert off <= (0 if exact else rounding), (way, cases[seed])
    assert {way for _, way, _, _ in results[0]} >= {"one call", "exchange"}


def decides(_rank: int) -> Any:
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("holdfast.comm").addHandler(handler)
    logging.getLogger("holdfast.comm").setLevel(logging.INFO)
    state = state_of(None)
    right = []
    for _ in range(5 * choice.TURNS):
        tensor = torch.ones(1000)
        comm.all_reduce(tensor)
        right.append(bool((tensor == 2).all()))
    torch.use_deterministic_algorithms(mode=True)
    for _ in range(5 * choice.TURNS):
        comm.all_reduce(torch.ones(10, dtype=torch.float64))
    return all(right), choice.chosen(state), [line.partition(" (")[0] for line in heard], heard


def test_all_ranks_decide_for_the_same_way(tmp_path: Path) -> None:
    first, second = run(2, decides, tmp_path)
    assert first == second
    right, chosen, said, heard = first
    assert right
    assert chosen[(80).bit_length(), torch.float64, True] == "one call"  # whoever wants the same bits in every run
    way = chosen[(4000).bit_length(), torch.float32, True]
    assert said == [f"all_reduce of some 4,000 bytes in group '0': by {way}"]
    assert "one call" in heard[0]
    assert " us" in heard[0]


def sends_less(_rank: int) -> Any:
    tensor = torch.linspace(1, 2, 10_001)
    comm.all_reduce(tensor, wire="bf16", chunk=1000)
    strided = torch.linspace(1, 2, 10_001)[::2]
    comm.all_reduce(strided, wire="bf16")
    with pytest.raises(BadValue, match="float32 and float64"):
        comm.all_reduce(torch.ones(3, dtype=torch.int32), wire="bf16")
    with pytest.raises(BadValue, match="'fp8'"):
        comm.all_reduce(torch.ones(3), wire="fp8")  # type: ignore[arg-type]
    comm.all_reduce(torch.ones(3), timeout="20s")
    with pytest.raises(BadValue, match="never"):
        comm.all_reduce(torch.ones(3), timeout="never")
    off = (tensor / (2 * torch.linspace(1, 2, 10_001)) - 1).abs().max().item()
    return off, torch.equal(strided, tensor[::2])


REFUSED: dict[str, Any] = {
    "sparse": lambda: comm.all_reduce(torch.ones(4).to_sparse()),
    "gradient": lambda: comm.all_reduce(torch.ones(4, requires_grad=True)),
    "time limit": lambda: comm.all_reduce(torch.ones(4), timeout=-1),
    "pieces": lambda: comm.all_reduce(torch.ones(4), chunk=0),
    "no backend for tensors on meta": lambda: comm.all_reduce(torch.ones(4, device="meta")),
    "does not reduce int16": lambda: comm.all_reduce(torch.ones(4, dtype=torch.int16)),
    "PRODUCT over ranks": lambda: comm.all_reduce(torch.ones(4, dtype=torch.complex64), dist.ReduceOp.PRODUCT),
    "BAND wants whole numbers": lambda: comm.all_reduce(torch.ones(4), dist.ReduceOp.BAND),
    "average of int32": lambda: comm.all_reduce_many([torch.ones(4, dtype=torch.int32)], dist.ReduceOp.AVG),
}


def refused(rank: int) -> Any:
    """What each call is told, and that the group is none the worse for it, nor a complex sum or one of bools."""
    told = []
    for call in REFUSED.values():
        with pytest.raises(BadValue) as caught:
            call()
        told.append(str(caught.value))
    numbers = comm.all_reduce(torch.tensor([1 + 2j, 3j]) * (rank + 1)).tolist()
    truths = comm.all_reduce(torch.tensor([rank == 0, False])).tolist()
    return told, numbers, truths


def test_what_cannot_be_reduced_is_refused_alike_and_harms_nothing(tmp_path: Path) -> None:
    first, second = run(2, refused, tmp_path)
    assert first == second
    told, numbers, truths = first
    for part, sentence in zip(REFUSED, told, strict=True):
        assert part in sentence, (part, sentence)
    assert numbers == [3 + 6j, 9j]
    assert truths == [True, False]


def test_narrow_on_the_wire(tmp_path: Path) -> None:
    found = run(2, sends_less, tmp_path)
    assert found[0] == found[1]
    off, same = found[0]
    assert 0 < off < 2**-7
    assert same

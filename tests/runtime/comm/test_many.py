"""Many tensors in one call: to the bit what one by one gives, by the part in C++ and by torch alike."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast import compiled
from holdfast.errors import BadValue, CollectiveMismatch, CollectiveTimeout
from holdfast.runtime import packing
from holdfast.runtime.comm.many import all_reduce_many
from tests.runtime.comm.ranks import run

WAYS = ("c++", "torch")
CASES_OF_A_JOB = 25

TENSOR = st.tuples(
    st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "float16", "bfloat16"]),
    st.lists(st.sampled_from([0, 1, 2, 3, 7]), max_size=3),  # shape
    st.sampled_from(["plain", "transposed", "every second", "a row", "inside another"]),
)
CASE = st.tuples(st.lists(TENSOR, max_size=12), st.sampled_from(["SUM", "MAX", "MIN", "PRODUCT"]))


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    if compiled.compiler() is None:
        pytest.skip("no C++ compiler on this machine: there is one way only")
    assert packing.ensure_built(print) is not None


_compiled_part = packing.loaded


def choose(way: str) -> None:
    """The rank packs in this way from here on."""
    native = _compiled_part()
    assert native is not None
    packing.loaded = cache(lambda: native if way == "c++" else None)  # type: ignore[assignment]


def make(kind: tuple[str, list[int], str], seed: int) -> torch.Tensor:
    """Small whole numbers, which every dtype adds exactly, in memory of the form that is asked for."""
    dtype, shape, form = kind
    generator = torch.Generator().manual_seed(seed)

    def numbers(*sizes: int) -> torch.Tensor:
        return torch.randint(0, 4, sizes, generator=generator).to(getattr(torch, dtype))

    if form == "transposed":
        return numbers(*reversed(shape)).permute([*reversed(range(len(shape)))])
    if form == "every second":
        return numbers(*shape, 2)[..., 1]
    if form == "a row":
        return numbers(3, *shape)[1]
    if form == "inside another":
        return numbers(*(size + 2 for size in shape))[tuple(slice(1, size + 1) for size in shape)]
    return numbers(*shape)


def both_ways(rank: int, cases: list[Any]) -> list[bool]:
    same = []
    for number, (kinds, name) in enumerate(cases):
        op = getattr(dist.ReduceOp, name)
        tensors = [make(kind, 1000 * number + 10 * at + rank) for at, kind in enumerate(kinds)]
        expected = [tensor.clone().contiguous() for tensor in tensors]
        for tensor in expected:
            dist.all_reduce(tensor, op)
        for way in WAYS:
            choose(way)
            own = [make(kind, 1000 * number + 10 * at + rank) for at, kind in enumerate(kinds)]
            back = all_reduce_many(iter(own), op, timeout=20)
            same.append(all(got is mine for got, mine in zip(back, own, strict=True)))
            same.append(all(torch.equal(got, true) for got, true in zip(own, expected, strict=True)))
    return same


@given(st.lists(CASE, min_size=CASES_OF_A_JOB, max_size=CASES_OF_A_JOB))
@settings(max_examples=3, deadline=None, phases=[Phase.generate])  # a job a step of shrinking is too much
def test_many_are_each_by_itself(tmp_path_factory: pytest.TempPathFactory, cases: list[Any]) -> None:
    told = run(2, both_ways, tmp_path_factory.mktemp("many"), cases)
    assert told == [[True] * (4 * CASES_OF_A_JOB)] * 2


def one_way_each(rank: int) -> Any:
    choose(WAYS[rank])  # a rank without a compiler sends the same bytes
    generator = torch.Generator().manual_seed(rank)
    tensors = [torch.randn(size, generator=generator) for size in [(), (3,), (2, 0), (5, 4)]]
    tensors += [torch.randn(6, 4, generator=generator).t(), torch.ones(3, dtype=torch.int64)]
    all_reduce_many(tensors, timeout=20)
    return [tensor.tolist() for tensor in tensors]


def test_ranks_that_pack_differently_understand_each_other(tmp_path: Path) -> None:
    told = run(2, one_way_each, tmp_path)
    assert told[0] == told[1]
    assert told[0][-1] == [2, 2, 2]


def traits(_: int) -> Any:
    told = []
    for way in WAYS:
        choose(way)
        leaf = torch.ones(2, requires_grad=True)
        inner = leaf * 1.0
        grid = torch.ones(4, 4)
        columns = [grid[:, 0], grid[:, 1], grid[:, 2:]]  # within each other, and apart
        with torch.inference_mode():
            frozen = torch.ones(2)
            all_reduce_many([frozen], timeout=20)
        counted = torch.ones(())
        before = counted._version
        all_reduce_many([counted, torch.ones(1)], timeout=20)
        all_reduce_many([inner, *columns], timeout=20)
        with torch.no_grad():
            all_reduce_many([leaf], timeout=20)
        told.append((
            all_reduce_many([]), grid.sum().item(), inner.tolist(), leaf.tolist(), frozen.tolist(),
            counted._version > before,
        ))  # fmt: skip
    return told


def test_views_gradients_and_versions(tmp_path: Path) -> None:
    expected = ([], 32.0, [2.0, 2.0], [2.0, 2.0], [2.0, 2.0], True)
    assert run(2, traits, tmp_path) == [[expected, expected]] * 2


def bad(what: str) -> list[Any]:
    one = torch.ones(4)
    return {
        "twice": [one, torch.ones(1), one],
        "overlap": [one[:3], one[2:]],
        "strided overlap": [one[::2], one[1:3]],
        "expanded": [torch.ones(1).expand(3)],
        "windows": [torch.ones(6).unfold(0, 3, 1)],
        "other dtype": [one, one.view(torch.int32)],
        "sparse": [one, one.to_sparse()],
        "gradient": [one, torch.ones(1, requires_grad=True)],
        "number": [one, 1.0],
    }[what]


BAD = ("twice", "overlap", "strided overlap", "expanded", "windows", "other dtype", "sparse", "gradient", "number")


def refuses(_: int) -> list[str]:
    told = []
    for way in WAYS:
        choose(way)
        for what in BAD:
            with pytest.raises(BadValue) as caught:
                all_reduce_many(bad(what), group=dist.new_group([0, 1]), timeout=20)
            told.append(str(caught.value))
    with pytest.raises(BadValue) as caught:
        all_reduce_many([torch.ones(1)], group=dist.new_group([0, 1]), timeout=-1)
    return [*told, str(caught.value)]


def test_what_cannot_be_reduced_is_refused_on_every_rank(tmp_path: Path) -> None:
    told = run(2, refuses, tmp_path)
    assert told[0] == told[1]
    assert told[0][: len(BAD)] == told[0][len(BAD) : 2 * len(BAD)]
    assert all("share memory" in text for text in told[0][:6])
    for text, word in zip(told[0][6:9], ("sparse", "gradient", "was given a float"), strict=True):
        assert word in text
    assert "-1 is not a positive time" in told[0][-1]


def differ(rank: int, what: str) -> Any:
    lists = {
        "number": [torch.ones(())] * (2 + rank),
        "shape": [torch.ones(2, 3) if rank else torch.ones(3, 2)],
        "order": [torch.ones(1, dtype=dtype) for dtype in (torch.int64, torch.float32)[:: 1 - 2 * rank]],
        "refused": [torch.ones(2).to_sparse() if rank else torch.ones(2)],
    }
    begun = time.monotonic()
    with pytest.raises((CollectiveMismatch, BadValue)) as caught:
        all_reduce_many([tensor.clone() for tensor in lists[what]], timeout=20)
    return type(caught.value), time.monotonic() - begun


@pytest.mark.parametrize("what", ["number", "shape", "order", "refused"])
def test_lists_that_differ_are_found_before_anything_moves(what: str, tmp_path: Path) -> None:
    told = run(2, differ, tmp_path, what)
    assert [kind for kind, _ in told] == [CollectiveMismatch, BadValue if what == "refused" else CollectiveMismatch]
    assert all(took < 10 for _, took in told)


def one_does_not_come(rank: int) -> Any:
    all_reduce_many([torch.ones(())], timeout=20)
    if rank == 1:
        return None
    with pytest.raises(CollectiveTimeout) as caught:
        all_reduce_many([torch.ones(()), torch.ones(2, dtype=torch.int64)], timeout=1.5)
    return str(caught.value), caught.value.missing


def test_who_does_not_come_is_named(tmp_path: Path) -> None:
    told = run(2, one_does_not_come, tmp_path)
    assert told[0][1] == (1,)
    assert told[0][0].startswith("all_reduce_many of 2 tensors (1 float32, 2 int64; shapes ")
    assert "test_many.py:" in told[0][0]


def test_a_part_that_does_not_load_or_is_not_there_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "packing.so"
    monkeypatch.setattr(packing, "place", lambda: file)
    for content in (None, b"no library"):
        if content is not None:
            file.write_bytes(content)
        packing.loaded.cache_clear()
        with caplog.at_level("DEBUG", logger="holdfast.comm"):
            assert packing.loaded() is None
    packing.loaded.cache_clear()
    assert "`python -m holdfast.runtime.packing` compiles a faster way" in caplog.text
    assert "does not load" in caplog.text

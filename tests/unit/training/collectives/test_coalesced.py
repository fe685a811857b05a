"""all_reduce_many equals single all_reduce calls, packed in C++ and by torch."""

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

from holdfast.core import native_extension
from holdfast.core.errors import CollectiveMismatch, CollectiveTimeout, InvalidValue
from holdfast.training import packing_extension
from holdfast.training.collectives.coalesced import all_reduce_many
from holdfast.training.collectives.groups.group_info import state_of
from tests.unit.training.collectives.ranks import run

PACKERS = ("c++", "torch")
CASES_PER_JOB = 25

TENSOR = st.tuples(
    st.sampled_from(["float32", "float64", "int64", "int32", "uint8", "float16", "bfloat16"]),
    st.lists(st.sampled_from([0, 1, 2, 3, 7]), max_size=3),  # shape
    st.sampled_from(["plain", "transposed", "every second", "a row", "inside another"]),
)
CASE = st.tuples(st.lists(TENSOR, max_size=12), st.sampled_from(["SUM", "MAX", "MIN", "PRODUCT"]))


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    if native_extension.find_compiler() is None:
        pytest.skip("no C++ compiler on this machine: only torch packs")
    assert packing_extension.ensure_built(print) is not None


_load_extension = packing_extension.load


def choose_packer(packer: str) -> None:
    """Pack with C++ or torch from now on."""
    native = _load_extension()
    assert native is not None
    packing_extension.load = cache(lambda: native if packer == "c++" else None)  # type: ignore[assignment]


def make(kind: tuple[str, list[int], str], seed: int) -> torch.Tensor:
    """Return small integers, which every dtype adds exactly, in the requested memory layout."""
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


def compare_packers(rank: int, cases: list[Any]) -> list[bool]:
    same = []
    for number, (kinds, name) in enumerate(cases):
        op = getattr(dist.ReduceOp, name)
        tensors = [make(kind, 1000 * number + 10 * at + rank) for at, kind in enumerate(kinds)]
        expected = [tensor.clone().contiguous() for tensor in tensors]
        for tensor in expected:
            dist.all_reduce(tensor, op)
        for packer in PACKERS:
            choose_packer(packer)
            own = [make(kind, 1000 * number + 10 * at + rank) for at, kind in enumerate(kinds)]
            back = all_reduce_many(iter(own), op, timeout=20)
            same.append(all(got is tensor for got, tensor in zip(back, own, strict=True)))
            same.append(
                all(torch.equal(got, true) for got, true in zip(own, expected, strict=True))
            )
    return same


@given(st.lists(CASE, min_size=CASES_PER_JOB, max_size=CASES_PER_JOB))
# No shrinking: each step would start a job.
@settings(max_examples=3, deadline=None, phases=[Phase.generate])
def test_coalesced_equals_single_reductions(
    tmp_path_factory: pytest.TempPathFactory, cases: list[Any]
) -> None:
    results = run(2, compare_packers, tmp_path_factory.mktemp("many"), cases)
    assert results == [[True] * (4 * CASES_PER_JOB)] * 2


def pack_differently(rank: int) -> Any:
    choose_packer(PACKERS[rank])  # the bytes sent are the same
    generator = torch.Generator().manual_seed(rank)
    tensors = [torch.randn(size, generator=generator) for size in [(), (3,), (2, 0), (5, 4)]]
    tensors += [torch.randn(6, 4, generator=generator).t(), torch.ones(3, dtype=torch.int64)]
    all_reduce_many(tensors, timeout=20)
    return [tensor.tolist() for tensor in tensors]


def test_ranks_with_different_packers_interoperate(tmp_path: Path) -> None:
    results = run(2, pack_differently, tmp_path)
    assert results[0] == results[1]
    assert results[0][-1] == [2, 2, 2]


def reduce_special_tensors(_: int) -> Any:
    results = []
    for packer in PACKERS:
        choose_packer(packer)
        leaf = torch.ones(2, requires_grad=True)
        inner = leaf * 1.0
        grid = torch.ones(4, 4)
        columns = [grid[:, 0], grid[:, 1], grid[:, 2:]]  # interleaved, without overlap
        with torch.inference_mode():
            frozen = torch.ones(2)
            all_reduce_many([frozen], timeout=20)
        counted = torch.ones(())
        before = counted._version
        all_reduce_many([counted, torch.ones(1)], timeout=20)
        all_reduce_many([inner, *columns], timeout=20)
        with torch.no_grad():
            all_reduce_many([leaf], timeout=20)
        results.append(
            (
                all_reduce_many([]),
                grid.sum().item(),
                inner.tolist(),
                leaf.tolist(),
                frozen.tolist(),
                counted._version > before,
            )
        )
    return results


def test_views_gradients_inference_tensors_and_versions(tmp_path: Path) -> None:
    expected = ([], 32.0, [2.0, 2.0], [2.0, 2.0], [2.0, 2.0], True)
    assert run(2, reduce_special_tensors, tmp_path) == [[expected, expected]] * 2


def invalid_list(what: str) -> list[Any]:
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


INVALID = (
    "twice",
    "overlap",
    "strided overlap",
    "expanded",
    "windows",
    "other dtype",
    "sparse",
    "gradient",
    "number",
)


def rejected_calls(_: int) -> list[str]:
    results = []
    for packer in PACKERS:
        choose_packer(packer)
        for what in INVALID:
            with pytest.raises(InvalidValue) as caught:
                all_reduce_many(invalid_list(what), group=dist.new_group([0, 1]), timeout=20)
            results.append(str(caught.value))
    with pytest.raises(InvalidValue) as caught:
        all_reduce_many([torch.ones(1)], group=dist.new_group([0, 1]), timeout=-1)
    return [*results, str(caught.value)]


def test_invalid_lists_are_rejected_on_every_rank(tmp_path: Path) -> None:
    results = run(2, rejected_calls, tmp_path)
    assert results[0] == results[1]
    assert results[0][: len(INVALID)] == results[0][len(INVALID) : 2 * len(INVALID)]
    assert all("share memory" in text for text in results[0][:6])
    for text, word in zip(
        results[0][6:9], ("sparse", "gradient", "an element is a float"), strict=True
    ):
        assert word in text
    assert "-1 is not a positive duration" in results[0][-1]


def call_with_other_list(rank: int, what: str) -> Any:
    lists = {
        "number": [torch.ones(())] * (2 + rank),
        "shape": [torch.ones(2, 3) if rank else torch.ones(3, 2)],
        "order": [
            torch.ones(1, dtype=dtype) for dtype in (torch.int64, torch.float32)[:: 1 - 2 * rank]
        ],
        "refused": [torch.ones(2).to_sparse() if rank else torch.ones(2)],
    }
    lists["refused late"] = lists["refused"]
    if what == "refused late":
        all_reduce_many([torch.ones(2)], timeout=20)
        if rank == 1:  # until rank 0 has announced that it is in the second call
            state_of(None).store.wait(["2/0"])
    began = time.monotonic()
    with pytest.raises((CollectiveMismatch, InvalidValue)) as caught:
        all_reduce_many([tensor.clone() for tensor in lists[what]], timeout=20)
    return type(caught.value), time.monotonic() - began


@pytest.mark.parametrize("what", ["number", "shape", "order", "refused", "refused late"])
def test_differing_lists_are_detected_before_data_move(what: str, tmp_path: Path) -> None:
    results = run(2, call_with_other_list, tmp_path, what)
    assert [kind for kind, _ in results] == [
        CollectiveMismatch,
        InvalidValue if "refused" in what else CollectiveMismatch,
    ]
    assert all(took < 10 for _, took in results)


def rank_1_is_missing(rank: int) -> Any:
    all_reduce_many([torch.ones(())], timeout=20)
    if rank == 1:
        return None
    with pytest.raises(CollectiveTimeout) as caught:
        all_reduce_many([torch.ones(()), torch.ones(2, dtype=torch.int64)], timeout=1.5)
    return str(caught.value), caught.value.missing


def test_missing_rank_is_reported(tmp_path: Path) -> None:
    results = run(2, rank_1_is_missing, tmp_path)
    assert results[0][1] == (1,)
    assert results[0][0].startswith("all_reduce_many of 2 tensors (1 float32, 2 int64; shapes ")
    assert "test_coalesced.py:" in results[0][0]


def test_missing_or_invalid_extension_is_not_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "packing.so"
    monkeypatch.setattr(packing_extension, "extension_path", lambda: file)
    for content in (None, b"no library"):
        if content is not None:
            file.write_bytes(content)
        packing_extension.load.cache_clear()
        with caplog.at_level("DEBUG", logger="holdfast.comm"):
            assert packing_extension.load() is None
    packing_extension.load.cache_clear()
    assert "compile a faster packing: python -m holdfast.training.packing_extension" in caplog.text
    assert "cannot load the tensor-packing extension" in caplog.text

"""sync_metrics: exact sums, and the same error on every rank if names or values do not match."""

from __future__ import annotations

import math
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.core.errors import CollectiveTimeout, InvalidValue
from holdfast.training.collectives.metrics import sync_metrics
from tests.unit.training.collectives.ranks import run

DICTIONARIES_PER_JOB = 40
FLOATS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)
DICTIONARY = st.dictionaries(
    st.text(max_size=5),
    st.tuples(FLOATS, FLOATS, FLOATS, st.sampled_from(["sum", "max", "min"])),
    max_size=9,
)


def sync_all(rank: int, dictionaries: list[dict[str, Any]]) -> list[dict[str, float]]:
    results = []
    for each in dictionaries:
        names = sorted(each, reverse=bool(rank % 2))  # in any order
        results.append(
            sync_metrics(
                {name: each[name][rank] for name in names},
                largest={name for name in names if each[name][3] == "max"},
                smallest=[name for name in names if each[name][3] == "min"],
                timeout=20,
            )
        )
    return results


def expected(each: dict[str, Any]) -> dict[str, float]:
    reduce = {"sum": lambda column: float(sum(map(Fraction, column))), "max": max, "min": min}
    return {name: reduce[kind](numbers) for name, (*numbers, kind) in each.items()}


@given(st.lists(DICTIONARY, min_size=DICTIONARIES_PER_JOB, max_size=DICTIONARIES_PER_JOB))
# No shrinking: each step would start a job.
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
def test_sums_are_rounded_once(
    tmp_path_factory: pytest.TempPathFactory, dictionaries: list[Any]
) -> None:
    results = run(3, sync_all, tmp_path_factory.mktemp("sums"), dictionaries)
    assert results == [[expected(each) for each in dictionaries]] * 3


def sync_kinds(rank: int) -> Any:
    values = {
        "int": 3,
        "bool": True,
        "float": 0.5,
        "scalar": torch.tensor(2, dtype=torch.int64),
        "one": torch.ones(1, 1),
        "gradient": torch.ones((), requires_grad=True),
        "large": (1 << 53) - 1 if rank else 1,
        "even": 1 << 60,
        "not a number": math.nan if rank else 1.0,
        "endless": math.inf,
        "both": math.inf if rank else -math.inf,
    }
    results = sync_metrics(values, timeout=20)
    many = [
        sync_metrics({f"{at:03}": at for at in range(count)}, timeout=20)
        for count in (0, 59, 60, 61, 200, 3, 300)
    ]
    worst = sync_metrics({"worst": math.nan if rank else 1.0}, largest=["worst"], timeout=20)
    return list(results), repr(list(results.values())), many, math.isnan(worst["worst"])


def test_all_kinds_and_counts_of_numbers(tmp_path: Path) -> None:
    results = run(2, sync_kinds, tmp_path)
    assert results[0] == results[1]
    names, values, many, worst = results[0]
    assert names[0] == "int"
    assert values == repr(
        [6.0, 2.0, 1.0, 4.0, 2.0, 2.0, 2.0**53, 2.0**61, math.nan, math.inf, math.nan]
    )
    assert [len(each) for each in many] == [0, 59, 60, 61, 200, 3, 300]
    assert many[-1] == {f"{at:03}": 2.0 * at for at in range(300)}
    assert worst


#: Values on rank 1 while rank 0 has {"loss": 1.0, "count": 2}, and an excerpt of the error on both.
INVALID: list[tuple[Any, dict[str, Any], str]] = [
    ({"loss": 1.0}, {}, "rank 1 lacks 'count' (sum)"),
    ({"loss": 1.0, "count": 2, "accuracy": 0.5}, {}, "rank 1 also has 'accuracy' (sum)"),
    ({"loss": 1.0, "number": 2}, {}, "rank 1 lacks 'count' (sum) and also has 'number' (sum)"),
    (
        {str(at): at for at in range(500)},
        {},
        "rank 1 lacks 'count' (sum), 'loss' (sum) and also has '0' (sum), '1' (sum)",
    ),
    (
        {"loss": 1.0, "count": 2},
        {"largest": ["loss"]},
        "rank 1 lacks 'loss' (sum) and also has 'loss' (max)",
    ),
    (
        {"loss": "1.0", "count": 2},
        {},
        "invalid value for sync_metrics on rank 1: 'loss' is not a number",
    ),
    ({"loss": None, "count": 2}, {}, "'loss' is not a number but NoneType"),
    ({"loss": 1j, "count": 2}, {}, "'loss' is not a number but complex"),
    ({"loss": torch.ones(3), "count": 2}, {}, "'loss' is a tensor of 3 elements"),
    (
        {"loss": 1.0, "count": (1 << 53) + 1},
        {},
        "'count' is 9007199254740993, which float64 cannot represent",
    ),
    ({"loss": 1.0, "count": 10**400}, {}, "too large for float64"),
    ({"loss": 1.0, 7: 2}, {}, "name 7 is not a string"),
    ({"loss": 1.0, "count": 2}, {"largest": ["worst"]}, "largest or smallest contains 'worst'"),
    (
        {"loss": 1.0, "count": 2},
        {"largest": ["loss"], "smallest": ["loss"]},
        "'loss' is in both largest and smallest",
    ),
]


def sync_invalid(rank: int) -> Any:
    results = []
    for values, options, _ in INVALID:
        began = time.monotonic()
        with pytest.raises(InvalidValue) as caught:
            sync_metrics(
                values if rank else {"loss": 1.0, "count": 2},
                timeout=20,
                **(options if rank else {}),
            )
        results.append((str(caught.value), time.monotonic() - began))
    assert sync_metrics({"loss": 1.0}, timeout=20) == {"loss": 2.0}  # the group still works
    return results


def test_invalid_metrics_raise_the_same_error_on_all_ranks(tmp_path: Path) -> None:
    results = run(2, sync_invalid, tmp_path)
    for (text, took), (other, _), (_, _, word) in zip(*results, INVALID, strict=True):
        assert text == other
        assert word in text
        assert took < 5


def rank_2_is_missing(rank: int) -> Any:
    sync_metrics({"loss": 1.0}, timeout=20)
    if rank == 2:
        return None
    with pytest.raises(CollectiveTimeout) as caught:
        sync_metrics({"loss": 1.0}, timeout=1.5)
    return caught.value.missing, str(caught.value)


def test_missing_rank_is_reported(tmp_path: Path) -> None:
    results = run(3, rank_2_is_missing, tmp_path)
    for missing, text in results[:2]:
        assert missing == (2,)
        assert "rank 2 did not arrive within 1.50 s" in text
        assert "test_metrics.py:" in text


def negative_timeout(_: int) -> Any:
    with pytest.raises(InvalidValue) as caught:
        sync_metrics({"loss": 1.0}, timeout=-1)
    return str(caught.value)


def test_negative_timeout_is_rejected(tmp_path: Path) -> None:
    results = run(2, negative_timeout, tmp_path)
    assert results[0] == results[1]
    assert "-1 is not a positive duration" in results[0]


def sync_in_group_of_one(rank: int) -> Any:
    group = dist.new_group([1])
    if rank:
        return sync_metrics({"loss": 1.0}, group=group)
    with pytest.raises(InvalidValue, match="not a member"):
        sync_metrics({"loss": 1.0}, group=group)
    return None


def test_group_of_one(tmp_path: Path) -> None:
    assert run(2, sync_in_group_of_one, tmp_path) == [None, {"loss": 1.0}]

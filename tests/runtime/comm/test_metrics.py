"""Metrics in one message: right to the last bit, and one clear error on every rank where they do not fit together."""

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

from holdfast.errors import BadValue, CollectiveTimeout
from holdfast.runtime.comm.metrics import sync_metrics
from tests.runtime.comm.ranks import run

DICTIONARIES_OF_A_JOB = 40
FLOATS = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)
DICTIONARY = st.dictionaries(
    st.text(max_size=5), st.tuples(FLOATS, FLOATS, FLOATS, st.sampled_from(["sum", "max", "min"])), max_size=9
)


def several(rank: int, dictionaries: list[dict[str, Any]]) -> list[dict[str, float]]:
    told = []
    for each in dictionaries:
        names = sorted(each, reverse=bool(rank % 2))  # the order is no matter
        told.append(sync_metrics(
            {name: each[name][rank] for name in names},
            largest={name for name in names if each[name][3] == "max"},
            smallest=[name for name in names if each[name][3] == "min"],
            timeout=20,
        ))  # fmt: skip
    return told


def expected(each: dict[str, Any]) -> dict[str, float]:
    reduce = {"sum": lambda column: float(sum(map(Fraction, column))), "max": max, "min": min}
    return {name: reduce[kind](numbers) for name, (*numbers, kind) in each.items()}


@given(st.lists(DICTIONARY, min_size=DICTIONARIES_OF_A_JOB, max_size=DICTIONARIES_OF_A_JOB))
@settings(max_examples=2, deadline=None, phases=[Phase.generate])  # a job a step of shrinking is too much
def test_sums_are_rounded_once(tmp_path_factory: pytest.TempPathFactory, dictionaries: list[Any]) -> None:
    told = run(3, several, tmp_path_factory.mktemp("sums"), dictionaries)
    assert told == [[expected(each) for each in dictionaries]] * 3


def kinds_of_numbers(rank: int) -> Any:
    values = {
        "int": 3, "bool": True, "float": 0.5, "scalar": torch.tensor(2, dtype=torch.int64), "one": torch.ones(1, 1),
        "gradient": torch.ones((), requires_grad=True), "large": (1 << 53) - 1 if rank else 1, "even": 1 << 60,
        "not a number": math.nan if rank else 1.0, "endless": math.inf, "both": math.inf if rank else -math.inf,
    }  # fmt: skip
    told = sync_metrics(values, timeout=20)
    many = [sync_metrics({f"{at:03}": at for at in range(count)}, timeout=20) for count in (0, 59, 60, 61, 200, 3, 300)]
    worst = sync_metrics({"worst": math.nan if rank else 1.0}, largest=["worst"], timeout=20)
    return list(told), repr(list(told.values())), many, math.isnan(worst["worst"])


def test_all_kinds_of_numbers_and_any_number_of_them(tmp_path: Path) -> None:
    told = run(2, kinds_of_numbers, tmp_path)
    assert told[0] == told[1]
    names, values, many, worst = told[0]
    assert names[0] == "int"
    assert values == repr([6.0, 2.0, 1.0, 4.0, 2.0, 2.0, 2.0**53, 2.0**61, math.nan, math.inf, math.nan])
    assert [len(each) for each in many] == [0, 59, 60, 61, 200, 3, 300]
    assert many[-1] == {f"{at:03}": 2.0 * at for at in range(300)}
    assert worst


#: What rank 1 gives while rank 0 gives {"loss": 1.0, "count": 2}, and a word of what both are told.
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    ({"loss": 1.0}, {}, "rank 1 lacks 'count' (sum)"),
    ({"loss": 1.0, "count": 2, "accuracy": 0.5}, {}, "rank 1 has 'accuracy' (sum) besides"),
    ({"loss": 1.0, "number": 2}, {}, "rank 1 lacks 'count' (sum) and has 'number' (sum) besides"),
    ({str(at): at for at in range(500)}, {}, "rank 1 lacks 'count' (sum), 'loss' (sum) and has '0' (sum), '1' (sum)"),
    ({"loss": 1.0, "count": 2}, {"largest": ["loss"]}, "rank 1 lacks 'loss' (sum) and has 'loss' (max) besides"),
    ({"loss": "1.0", "count": 2}, {}, "sync_metrics on rank 1 has a value that cannot be used: 'loss' is no number"),
    ({"loss": None, "count": 2}, {}, "'loss' is no number but NoneType"),
    ({"loss": 1j, "count": 2}, {}, "'loss' is no number but complex"),
    ({"loss": torch.ones(3), "count": 2}, {}, "'loss' is a tensor of 3 elements"),
    ({"loss": 1.0, "count": (1 << 53) + 1}, {}, "'count' is 9007199254740993, which float64 cannot hold"),
    ({"loss": 1.0, "count": 10**400}, {}, "too large for float64"),
    ({"loss": 1.0, 7: 2}, {}, "the name 7 is no text"),
    ({"loss": 1.0, "count": 2}, {"largest": ["worst"]}, "'worst' is to be reduced to its largest"),
    ({"loss": 1.0, "count": 2}, {"largest": ["loss"], "smallest": ["loss"]}, "to its smallest at once"),
]


def wrong(rank: int) -> Any:
    told = []
    for values, options, _ in WRONG:
        begun = time.monotonic()
        with pytest.raises(BadValue) as caught:
            sync_metrics(values if rank else {"loss": 1.0, "count": 2}, timeout=20, **(options if rank else {}))
        told.append((str(caught.value), time.monotonic() - begun))
    assert sync_metrics({"loss": 1.0}, timeout=20) == {"loss": 2.0}  # the group is none the worse
    return told


def test_what_does_not_fit_together_is_told_to_all_at_once(tmp_path: Path) -> None:
    told = run(2, wrong, tmp_path)
    for (text, took), (other, _), (_, _, word) in zip(*told, WRONG, strict=True):
        assert text == other
        assert word in text
        assert took < 5


def one_does_not_come(rank: int) -> Any:
    sync_metrics({"loss": 1.0}, timeout=20)
    if rank == 2:
        return None
    with pytest.raises(CollectiveTimeout) as caught:
        sync_metrics({"loss": 1.0}, timeout=1.5)
    return caught.value.missing, str(caught.value)


def test_who_does_not_come_is_named(tmp_path: Path) -> None:
    told = run(3, one_does_not_come, tmp_path)
    for missing, text in told[:2]:
        assert missing == (2,)
        assert "rank 2 did not come within 1.50 s" in text
        assert "test_metrics.py:" in text


def refuses_time(_: int) -> Any:
    with pytest.raises(BadValue) as caught:
        sync_metrics({"loss": 1.0}, timeout=-1)
    return str(caught.value)


def test_a_negative_time_is_refused(tmp_path: Path) -> None:
    told = run(2, refuses_time, tmp_path)
    assert told[0] == told[1]
    assert "-1 is not a positive time" in told[0]


def alone(rank: int) -> Any:
    group = dist.new_group([1])
    if rank:
        return sync_metrics({"loss": 1.0}, group=group)
    with pytest.raises(BadValue, match="no member"):
        sync_metrics({"loss": 1.0}, group=group)
    return None


def test_a_group_of_one(tmp_path: Path) -> None:
    assert run(2, alone, tmp_path) == [None, {"loss": 1.0}]

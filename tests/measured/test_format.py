"""Sizes, counts and bandwidths as nccl-tests defines them, and files that are none."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import BadValue
from holdfast.measured import COLLECTIVES, Measurement, Wish, algbw, busbw, element_count, parse, takes
from holdfast.report.json import encode, envelope


@pytest.mark.parametrize(
    ("collective", "size", "dtype", "ranks", "count"),
    [  # (size / width / ranks) & ~(16 / width - 1): all_gather.cu, reduce_scatter.cu, alltoall.cu of nccl-tests 2.19.6
        ("all_reduce", 1048576, "float32", 8, 262144),
        ("broadcast", 9, "float32", 8, 2),
        ("all_gather", 1048576, "float32", 8, 32768),
        ("all_gather", 1048576, "float32", 3, 87380),
        ("reduce_scatter", 100, "float64", 3, 4),
        ("all_to_all", 8, "float32", 2, 0),
        ("all_gather", 96, "int8", 3, 32),
    ],
)
def test_counts_are_those_of_nccl_tests(collective, size, dtype, ranks, count):
    assert element_count(collective, size, dtype, ranks) == count


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("broadcast", 1), ("reduce", 1),
     ("all_to_all", 0.875), ("sendrecv", 1)],
)  # fmt: skip
def test_bandwidth_on_the_bus_is_that_of_nccl_tests(collective, factor):
    assert algbw(1 << 30, 0.5) == pytest.approx(2.147483648)
    assert busbw(collective, 1 << 30, 0.5, 8) == pytest.approx(2.147483648 * factor)


def test_sizes_grow_by_a_factor_or_by_steps_and_always_grow():
    assert list(Wish(min_bytes=8, max_bytes=100, factor=4).sizes()) == [8, 32]
    assert list(Wish(min_bytes=8, max_bytes=20, step_bytes=6).sizes()) == [8, 14, 20]
    assert list(Wish(min_bytes=1, max_bytes=4, factor=1.1).sizes()) == [1, 2, 3, 4]


def test_every_collective_has_torchs_way_and_only_sums_have_them_all():
    assert all(takes(each, "torch") for each in COLLECTIVES)
    assert takes("all_reduce", "bf16")
    assert not takes("all_reduce", "bf16", "int32")
    assert not takes("broadcast", "bf16")
    assert not takes("all_to_all", "holdfast")


def test_a_measurement_is_read_back_from_its_envelope():
    found = Measurement(ranks=2, torch="2.13.0")
    assert parse(encode(envelope("bench", [], None, measurement=found)), "a.json") == found


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b'{"measurement": {"ranks": -1}}',
        b'{"measurement": {"schema": "holdfast/bench/9"}}',
        b'{"measurement": {"series": [{"collective": 3}]}}',
        b"[" * 5000,
        msgspec.json.encode({"measurement": {"hosts": [{"name": "x" * 5000}]}}),
    ],
)
def test_what_is_no_measurement_is_refused_in_one_sentence(data):
    with pytest.raises(BadValue, match=r"^the measurement a\.json has a value that cannot be used: ") as told:
        parse(data, "a.json")
    assert "\n" not in str(told.value)

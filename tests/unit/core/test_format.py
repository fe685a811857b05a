"""Sizes, counts and bandwidths as defined by nccl-tests, and rejection of invalid files."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.errors import InvalidValue
from holdfast.core.measurements import (
    COLLECTIVES,
    BenchRequest,
    Measurement,
    algbw,
    busbw,
    element_count,
    parse_measurement,
    supports,
)
from holdfast.report.json import encode_json, envelope


@pytest.mark.parametrize(
    ("collective", "size", "dtype", "ranks", "count"),
    [  # (size / width / ranks) & ~(16 / width - 1): nccl-tests 2.19.6, all_gather.cu and others
        ("all_reduce", 1048576, "float32", 8, 262144),
        ("broadcast", 9, "float32", 8, 2),
        ("all_gather", 1048576, "float32", 8, 32768),
        ("all_gather", 1048576, "float32", 3, 87380),
        ("reduce_scatter", 100, "float64", 3, 4),
        ("all_to_all", 8, "float32", 2, 0),
        ("all_gather", 96, "int8", 3, 32),
    ],
)
def test_counts_match_nccl_tests(collective, size, dtype, ranks, count):
    assert element_count(collective, size, dtype, ranks) == count


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("broadcast", 1),
        ("reduce", 1),
        ("all_to_all", 0.875),
        ("sendrecv", 1),
    ],
)
def test_bus_bandwidth_matches_nccl_tests(collective, factor):
    assert algbw(1 << 30, 0.5) == pytest.approx(2.147483648)
    assert busbw(collective, 1 << 30, 0.5, 8) == pytest.approx(2.147483648 * factor)


def test_sizes_grow_by_a_factor_or_by_steps_and_always_grow():
    assert list(BenchRequest(min_bytes=8, max_bytes=100, factor=4).sizes()) == [8, 32]
    assert list(BenchRequest(min_bytes=8, max_bytes=20, step_bytes=6).sizes()) == [8, 14, 20]
    assert list(BenchRequest(min_bytes=1, max_bytes=4, factor=1.1).sizes()) == [1, 2, 3, 4]


def test_supported_algorithms():
    assert all(supports(each, "torch") for each in COLLECTIVES)
    assert supports("all_reduce", "bf16")
    assert not supports("all_reduce", "bf16", "int32")
    assert not supports("broadcast", "bf16")
    assert not supports("all_to_all", "holdfast")


def test_round_trip_through_the_envelope():
    found = Measurement(ranks=2, torch="2.13.0")
    assert (
        parse_measurement(encode_json(envelope("bench", [], None, measurement=found)), "a.json")
        == found
    )


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
def test_invalid_measurements_raise_one_sentence(data):
    with pytest.raises(InvalidValue, match=r"^invalid measurement a\.json: it ") as raised:
        parse_measurement(data, "a.json")
    assert "\n" not in str(raised.value)

"""Speed probe: within time and memory limits, with the same result or error on all ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

import holdfast
from holdfast.core.errors import InvalidValue
from tests.unit.training.collectives.ranks import run


class Device:
    """Simulates the time of a micro-batch, and has memory for ``fits`` samples."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        fits: int = 1 << 30,
        error: type[Exception] | None = None,
    ):
        self.fits, self.now, self.calls = fits, 0.0, []
        self.error = error or torch.OutOfMemoryError
        monkeypatch.setattr(
            "holdfast.training.heterogeneous.speed_probe.time.perf_counter", lambda: self.now
        )

    def __call__(self, size: int) -> None:
        self.calls.append(size)
        if size > self.fits:
            raise self.error
        self.now += (
            0.1 + 0.01 * size + (5.0 if len(self.calls) in (2, 9) else 0.0)
        )  # occasional delays


def test_time_is_the_median_for_each_size(monkeypatch):
    device = Device(monkeypatch)
    speed = holdfast.probe_speed(device, 24, device="cpu").ranks[0]
    assert speed.sizes == (1, 2, 4, 8, 16, 24)
    assert speed.times_s == pytest.approx([0.1 + 0.01 * size for size in speed.sizes])
    assert (speed.rank, speed.device, speed.limited) == (0, "cpu", "")
    assert device.calls.count(4) == 6


@pytest.mark.parametrize("fits", [1, 2, 3, 7, 8, 23, 36, 37, 39])
def test_the_largest_that_fits_is_found(monkeypatch, fits):
    device = Device(monkeypatch, fits)
    speed = holdfast.probe_speed(device, 37, rounds=1, device="cpu").ranks[0]
    assert speed.most == min(fits, 37)
    assert (f"{min(fits, 37) + 1} does not fit into memory" in speed.limited) == (fits < 37)
    assert sum(size > fits for size in device.calls) <= 6


def test_the_time_limit_ends_the_probe(monkeypatch):
    device = Device(monkeypatch)
    speed = holdfast.probe_speed(device, 1 << 20, limit_s=30, device="cpu").ranks[0]
    assert 1 < speed.most < 1 << 12
    assert device.now < 60
    assert "the limit of 30 s was reached before a micro-batch of" in speed.limited


def test_no_sample_fits(monkeypatch):
    with pytest.raises(InvalidValue, match=r"rank 0.*a micro-batch of 1 does not fit into memory"):
        holdfast.probe_speed(Device(monkeypatch, fits=0), 8, device="cpu")


def test_an_error_in_the_step_is_raised(monkeypatch):
    with pytest.raises(KeyError):
        holdfast.probe_speed(Device(monkeypatch, fits=3, error=KeyError), 8, device="cpu")
    with pytest.raises(InvalidValue, match="max_samples=0 and rounds=5"):
        holdfast.probe_speed(Device(monkeypatch), 0, device="cpu")


def probe(rank: int) -> Any:
    sample_s = 0.006 if rank else 0.002
    most = 8 if rank else 16
    speeds = holdfast.probe_speed(
        lambda size: time.sleep(sample_s * size), most, rounds=3, device="cpu"
    )
    bad: object = None
    try:
        holdfast.probe_speed(lambda size: {}[size] if rank == 2 else None, 4, device="cpu")
    except (KeyError, InvalidValue) as error:
        bad = str(error)
    return speeds, bad


@pytest.mark.slow
def test_all_ranks_get_all_speeds_and_the_failed_rank(tmp_path: Path):
    (speeds, one), (other, _), (third, own) = run(3, probe, tmp_path)
    assert speeds == other == third
    assert [each.most for each in speeds.ranks] == [16, 8, 8]
    assert len(speeds.kinds()) >= 2
    assert "speed of rank 2" in one
    assert "its step failed: KeyError: 1" in one
    assert own == "1"

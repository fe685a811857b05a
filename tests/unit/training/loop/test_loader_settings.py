"""`holdfast.loader_settings`: the script's values, the environment, the defaults."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.core.errors import InvalidValue
from holdfast.training.loop.hooks import Hooks

VARIABLES = ("LOADER_CACHE", "LOADER_PREFETCH", "LOADER_WORKERS", "MICRO_BATCHES")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(f"HOLDFAST_{name}", raising=False)


def test_the_defaults():
    found = holdfast.loader_settings()
    assert (found.cache, found.prefetch, found.workers, found.micro_batches) == (False, 0, 0, 1)
    assert set(found.origins.values()) == {"default"}
    assert found.loader_options() == {"num_workers": 0}


def test_the_script_precedes_the_environment(monkeypatch):
    for name, value in zip(VARIABLES, ("device", "4", "2", "3"), strict=True):
        monkeypatch.setenv(f"HOLDFAST_{name}", value)
    found = holdfast.loader_settings(cache=False, micro_batches=1)
    assert (found.cache, found.prefetch, found.workers, found.micro_batches) == (False, 4, 2, 1)
    assert str(found) == (
        "cache off (script), prefetch 4 (environment), workers 2 (environment), "
        "micro-batches 1 (script)"
    )


def test_data_on_the_device_needs_no_workers(monkeypatch):
    monkeypatch.setenv("HOLDFAST_LOADER_CACHE", "device")
    monkeypatch.setenv("HOLDFAST_LOADER_WORKERS", "2")
    assert holdfast.loader_settings().workers == 0
    assert holdfast.loader_settings(workers=1).workers == 1


@pytest.mark.parametrize(
    ("workers", "prefetch", "factor"), [(2, 4, 2), (2, 3, 2), (3, 2, 1), (2, 0, None)]
)
def test_the_options_of_a_loader(workers, prefetch, factor):
    options = holdfast.loader_settings(workers=workers, prefetch=prefetch).loader_options()
    expected = {"num_workers": workers, "persistent_workers": True}
    assert options == expected | ({} if factor is None else {"prefetch_factor": factor})


@pytest.mark.parametrize(
    "passed", [{"workers": -1}, {"prefetch": 1.5}, {"micro_batches": 0}, {"workers": True}]
)
def test_invalid_values(passed):
    with pytest.raises(InvalidValue, match="must be an integer of at least"):
        holdfast.loader_settings(**passed)


def test_an_invalid_variable_is_named(monkeypatch):
    monkeypatch.setenv("HOLDFAST_LOADER_WORKERS", "many")
    with pytest.raises(InvalidValue, match="HOLDFAST_LOADER_WORKERS"):
        holdfast.loader_settings()


def test_the_loop_splits_batches_as_the_variable_says(monkeypatch):
    assert Hooks().micro_batches == 1
    monkeypatch.setenv("HOLDFAST_MICRO_BATCHES", "3")
    assert Hooks().micro_batches == 3

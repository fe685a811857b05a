"""Fixtures of all callback tests."""

import pytest

from holdfast.training.checkpoint import emergency


@pytest.fixture(autouse=True)
def _stop_listening():
    """Restore signal handlers: the test process does not exit after a preemption signal."""
    yield
    emergency.stop_listening()

"""What the tests of all callbacks share."""

import pytest

from holdfast.runtime.checkpoint import emergency


@pytest.fixture(autouse=True)
def _deaf_afterwards():
    """A process that was told to leave has ended; this one goes on."""
    yield
    emergency.stop()

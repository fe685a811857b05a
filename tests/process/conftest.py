import pytest

from tests import ports
from tests.process.launched import Launched


@pytest.fixture
def launch(tmp_path):
    """Starts `holdfast run`; whatever is still there at the end of the test is killed."""
    started = []

    def start(*arguments, folder=None, **variables):
        started.append(Launched(tmp_path / folder if folder else tmp_path, *arguments, **variables))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def free_port():
    return ports.free_port()

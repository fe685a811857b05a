import pytest

from tests import ports
from tests.process.launched import Launched


@pytest.fixture
def launch(tmp_path):
    """Return a function that starts `holdfast run`; jobs left at the end of the test are killed."""
    jobs = []

    def start(*arguments, folder=None, **variables):
        jobs.append(Launched(tmp_path / folder if folder else tmp_path, *arguments, **variables))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture
def free_port():
    return ports.free_port()

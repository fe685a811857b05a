"""What fails while training goes on is told elsewhere too."""

import time
from pathlib import Path

import pytest

from tests.actions.test_alerts import Receiver

SCRIPT = Path(__file__).with_name("copies_fail.py")
LIMIT_S = 90


@pytest.mark.slow
def test_a_copy_of_checkpoints_that_fails_reaches_alerts_once(launch, tmp_path):
    with Receiver() as receiver:
        job = launch("--alert", receiver.url, "--nproc-per-node", 1, "--recorder", "python", SCRIPT, tmp_path)
        until = time.monotonic() + LIMIT_S
        while not receiver.received and time.monotonic() < until:
            assert job.process.poll() is None, job.output
            time.sleep(0.1)
        (tmp_path / "enough").touch()
        assert job.end() == 0, job.output
        receiver.shutdown()
    (told,) = receiver.received
    assert "the copy of checkpoints to" in told["title"]
    assert "training goes on, and it is tried again in" in told["message"]

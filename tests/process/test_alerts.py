"""Alerts of problems that do not stop the job."""

import time
from pathlib import Path

import pytest

from tests.unit.launcher.test_alerts import Receiver

SCRIPT = Path(__file__).with_name("copies_fail.py")
LIMIT_S = 90


@pytest.mark.slow
def test_a_failed_checkpoint_copy_is_alerted_once(launch, tmp_path):
    with Receiver() as receiver:
        job = launch(
            "--alert", receiver.url, "--nproc-per-node", 1, "--recorder", "python", SCRIPT, tmp_path
        )
        until = time.monotonic() + LIMIT_S
        while not receiver.received and time.monotonic() < until:
            assert job.process.poll() is None, job.output
            time.sleep(0.1)
        (tmp_path / "enough").touch()
        assert job.end() == 0, job.output
        receiver.shutdown()
    (alert,) = receiver.received
    assert "replication to" in alert["title"]
    assert "training continues, next attempt in" in alert["message"]

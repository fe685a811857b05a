"""Who interrupts a campaign leaves no process and no box behind, and is told how to go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.actions.chaos.play import _living, _shared

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_a_campaign_that_is_interrupted(tmp_path, told):
    command = [sys.executable, "-m", "holdfast", "chaos", "run", "sigkill-middle", "flip-checkpoint"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as campaign:
        until = time.monotonic() + 200
        while not (traces := list(tmp_path.glob("holdfast-chaos-*/*/trace-rank1.jsonl"))):
            assert time.monotonic() < until
            assert campaign.poll() is None
            time.sleep(0.05)
        folder = Path(traces[0]).parent
        assert list(_living(folder))
        campaign.send_signal(told)
        _, said = campaign.communicate(timeout=60)
    assert campaign.returncode == 130
    assert said == "interrupted, 2 were not played; with --results and --go-on the rest can be\n"
    assert list(_living(folder)) == []
    assert list(_shared(folder, set())) == []

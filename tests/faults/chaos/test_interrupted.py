"""An interrupted campaign leaves no processes or trace files and prints how to resume."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.chaos.runner import _live_processes, _shared_memory_names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "signal_sent", [pytest.param(signal.SIGINT, marks=pytest.mark.matrix), signal.SIGTERM]
)
def test_an_interrupted_campaign_cleans_up(tmp_path, signal_sent):
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "chaos",
        "run",
        "sigkill-middle",
        "flip-checkpoint",
    ]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as campaign:
        until = time.monotonic() + 200
        while not (traces := list(tmp_path.glob("holdfast-chaos-*/*/trace-rank1.jsonl"))):
            assert time.monotonic() < until
            assert campaign.poll() is None
            time.sleep(0.05)
        folder = Path(traces[0]).parent
        assert list(_live_processes(folder))
        campaign.send_signal(signal_sent)
        _, stderr = campaign.communicate(timeout=60)
    assert campaign.returncode == 130
    assert (
        stderr == "interrupted; 2 scenarios were not run (use --results and --resume to continue)\n"
    )
    assert list(_live_processes(folder)) == []
    assert list(_shared_memory_names(folder, set())) == []

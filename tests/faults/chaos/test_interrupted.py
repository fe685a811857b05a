"""An interrupted campaign leaves no processes or trace files and prints how to resume."""

from __future__ import annotations

import signal
import time

import pytest

from holdfast.chaos.runner import _live_processes, _shared_memory_names
from tests.forked_programs import RunningProgram

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize(
    "signal_sent", [pytest.param(signal.SIGINT, marks=pytest.mark.matrix), signal.SIGTERM]
)
def test_an_interrupted_campaign_cleans_up(tmp_path, signal_sent):
    scenarios = ("sigkill-middle", "flip-checkpoint")
    campaign = RunningProgram(
        *("-m", "holdfast", "chaos", "run"), *scenarios, folder=tmp_path, TMPDIR=str(tmp_path)
    )
    until = time.monotonic() + 200
    while not (traces := list(tmp_path.glob("holdfast-chaos-*/*/trace-rank1.jsonl"))):
        assert time.monotonic() < until
        assert campaign.process.poll() is None
        time.sleep(0.05)
    folder = traces[0].parent
    assert list(_live_processes(folder))
    campaign.process.send_signal(signal_sent)
    done = campaign.result()
    assert done.returncode == 130
    assert (
        done.stderr
        == "interrupted; 2 scenarios were not run (use --results and --resume to continue)\n"
    )
    assert list(_live_processes(folder)) == []
    assert list(_shared_memory_names(folder, set())) == []

"""Two groups of ranks emulated on CPU: shares by speed, the same losses, and other shares where a rank is throttled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[2] / "examples" / "heterogeneous" / "train.py"
NUMBER = r"([\d,.e+-]+)"

pytestmark = pytest.mark.slow


def sizes(text):
    return [int(size) for size in text.split("/")]


def test_shares_by_speed_are_quicker_and_learn_the_same(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "RANK"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", str(TRAIN)]
    done = subprocess.run(
        [*command, "--steps", "8"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout + done.stderr
    equal = re.search(rf"equal shares 16/16/16/16: {NUMBER} samples/s", shown)
    allotted = re.search(rf"by speed ([\d/]+): {NUMBER} samples/s", shown)
    anew = re.search(r"the batch is dealt out as ([\d/]+) instead of ([\d/]+)", shown)
    assert equal, shown
    assert allotted, shown
    assert anew, shown
    mine = sizes(allotted[1])
    assert sum(mine) == 64
    assert min(mine[:2]) > max(mine[2:])
    assert float(allotted[2].replace(",", "")) > float(
        equal[1].replace(",", "")
    )  # twice as quick where nothing disturbs
    assert float(re.search(rf"losses differ by {NUMBER} at most", shown)[1]) < 1e-5
    after, before = sizes(anew[1]), sizes(anew[2])
    assert before == mine
    assert sum(after) == 64
    assert after[0] < before[0]

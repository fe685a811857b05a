"""Fast and slow ranks emulated on CPU: shares by speed, equal losses, and rebalancing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[3] / "examples" / "heterogeneous" / "train.py"
NUMBER = r"([\d,.e+-]+)"

pytestmark = pytest.mark.slow


def sizes(text):
    return [int(size) for size in text.split("/")]


@pytest.mark.matrix
def test_shares_by_speed_are_faster_with_equal_losses(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "RANK"} | {
        "OMP_NUM_THREADS": "1"
    }
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=4",
        str(TRAIN),
    ]
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
    output = done.stdout + done.stderr
    equal = re.search(rf"equal shares 16/16/16/16: {NUMBER} samples/s", output)
    by_speed = re.search(rf"by speed ([\d/]+): {NUMBER} samples/s", output)
    rebalanced = re.search(r"the batch is divided as ([\d/]+) instead of ([\d/]+)", output)
    assert equal, output
    assert by_speed, output
    assert rebalanced, output
    shares = sizes(by_speed[1])
    assert sum(shares) == 64
    assert min(shares[:2]) > max(shares[2:])
    # Twice as fast on an idle machine.
    assert float(by_speed[2].replace(",", "")) > float(equal[1].replace(",", ""))
    assert float(re.search(rf"losses differ by at most {NUMBER}", output)[1]) < 1e-5
    after, before = sizes(rebalanced[1]), sizes(rebalanced[2])
    assert before == shares
    assert sum(after) == 64
    assert after[0] < before[0]

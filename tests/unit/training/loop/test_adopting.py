"""Apply the diff of docs/recovery.md to a script; the result survives a kill."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.process.launched import Launched

ROOT = Path(__file__).parents[4]
SCRIPT = Path(__file__).parent / "adopted" / "train.py"
PAGE = ROOT / "docs" / "recovery.md"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def adopted(folder):
    """Return the script with the diff of the page applied."""
    folder.mkdir()
    shutil.copy(SCRIPT, folder / "train.py")
    (diff,) = re.findall(r"```diff\n(.*?)```", PAGE.read_text(), re.DOTALL)
    subprocess.run(["git", "apply", "-p0", "-"], cwd=folder, input=diff, text=True, check=True)
    return diff


def final(job):
    """Return the exact last loss of each rank."""
    return dict(re.findall(r"final loss of rank (\d): (\S+)", job.output))


def test_diff_is_short(tmp_path):
    diff = adopted(tmp_path / "job")
    lines = [line for line in diff.splitlines() if not line.startswith(("+++", "---"))]
    assert len([line for line in lines if line.startswith("+")]) <= 6
    compile((tmp_path / "job" / "train.py").read_text(), "train.py", "exec")


@pytest.mark.matrix
def test_the_script_resumes_bit_identically_after_a_kill(tmp_path):
    losses = []
    for name, more in (
        ("whole", []),
        ("killed", ["--max-restarts", "1", "--inject", "sigkill@rank=1,step=15"]),
    ):
        adopted(tmp_path / name)
        script = tmp_path / name / "train.py"
        script.write_text(script.read_text().replace('every="10m"', "every_steps=4"))
        job = Launched(tmp_path / name, "--standalone", "--nproc-per-node", "2", *more, "train.py")
        assert job.end() == 0, job.output
        losses.append(final(job))
        kept = [path.name for path in (tmp_path / name / "checkpoints").glob("step-*")]
        assert "step-0000000024" in kept
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]

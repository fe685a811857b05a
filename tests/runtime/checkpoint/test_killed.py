"""SIGKILL at any moment: whatever anybody was told is declared is there afterwards, whole, and loads."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable

ROOT = Path(__file__).parents[3]
LIMIT_S = 60.0


def declared(folder):
    """The newest step that a rank was told is declared."""
    lines = [line for file in folder.glob("declared*") for line in file.read_text().splitlines()]
    return max((int(line) for line in lines if not line.startswith("#")), default=0)


def begun(folder, size):
    """How many starts have come so far as to train, on all ranks."""
    files = [folder / f"declared{rank}" for rank in range(size)]
    return min(file.read_text().count("#") if file.exists() else 0 for file in files)


def run_and_kill(folder, size, attempt, delay_s, order):
    """One start, killed ``delay_s`` after it began to train; ranks die one after the other, in ``order``."""
    command = [sys.executable, "-m", "tests.runtime.checkpoint.killed", str(folder)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(size), str(attempt)], cwd=ROOT, stderr=subprocess.PIPE)
        for rank in range(size)
    ]
    try:
        until = time.monotonic() + LIMIT_S
        while begun(folder, size) <= attempt:
            dead = [rank.communicate()[1].decode() for rank in ranks if rank.poll() is not None]
            assert not dead, dead
            assert time.monotonic() < until
            time.sleep(0.005)
        time.sleep(delay_s)
        assert [rank.poll() for rank in ranks] == [None] * size
    finally:
        for rank in order:
            ranks[rank].kill()
            time.sleep(0.01)
        for rank in ranks:
            rank.communicate()


def newest_whole(root):
    """The step of the newest checkpoint that is proven whole, and of those that are not."""
    for folder in manifest.newest_first(root):
        try:
            found = manifest.read(folder)
        except CheckpointUnreadable:
            pytest.fail(f"{folder.name} has the name of a checkpoint and no valid manifest")
        assert list(manifest.damages(folder, found)) == []
        return found.step
    return 0


def kill_again_and_again(tmp_path, size, seed, times, longest_s):
    choice = random.Random(seed)
    reached = 0
    for attempt in range(times):
        order = choice.sample(range(size), size)
        run_and_kill(tmp_path, size, attempt, choice.uniform(0, longest_s), order)
        told = declared(tmp_path)
        assert newest_whole(tmp_path / "checkpoints") >= told, f"attempt {attempt}"
        assert told >= reached
        reached = told
    assert reached > 0


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_a_declared_checkpoint_outlives_kill_9(tmp_path, size):
    kill_again_and_again(tmp_path, size, seed=size, times=3, longest_s=1.0)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("size", "times"), [(1, 120), (2, 80)])
def test_a_declared_checkpoint_outlives_200_kills(tmp_path, size, times):
    """Two hundred moments; each start goes on where the last was killed, for well over a minute of training in all."""
    kill_again_and_again(tmp_path, size, seed=10 + size, times=times, longest_s=0.6)

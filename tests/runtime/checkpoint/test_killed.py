"""SIGKILL at any moment: whatever anybody was told is declared is there afterwards, whole, and loads."""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable
from holdfast.runtime.checkpoint.commit import leftovers
from holdfast.runtime.checkpoint.storage import INDEX

ROOT = Path(__file__).parents[3]
LIMIT_S = 60.0
LOADING, BETWEEN, UNTOLD = "starting and loading", "between two saves", "declared, and nobody told yet"
#: One kill in so many comes while the job starts and loads.
EARLY = 5


class Parent:
    """The process that imports once and forks ranks; what they say of their end goes into a file."""

    def __init__(self, folder):
        self.said = folder / "stderr"
        with self.said.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.runtime.checkpoint.killed"], cwd=ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream,
            )  # fmt: skip

    def start(self, *words):
        """A handle of a new rank."""
        print(*words, file=self._process.stdin, flush=True)
        child = self._process.stdout.readline()
        assert child, self.said.read_text()
        return os.pidfd_open(int(child))

    def end(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def parent(tmp_path):
    found = Parent(tmp_path)
    yield found
    found.end()


def ended(rank, within_s=0.0):
    return bool(select.select([rank], [], [], within_s)[0])


def has_said(folder, size, words):
    files = [folder / f"declared{rank}" for rank in range(size)]
    return all(file.exists() and words in file.read_text().splitlines() for file in files)


def declared(folder):
    """The newest step that a rank was told is declared."""
    lines = [line for file in folder.glob("declared*") for line in file.read_text().splitlines()]
    return max((int(line) for line in lines if not line.startswith("#")), default=0)


def run_and_kill(parent, folder, size, attempt, wait_for, delay_s, order):
    """One start, killed ``delay_s`` after it said that it ``starts`` or ``begins``; one rank after the other."""
    ranks = [parent.start(folder, rank, size, attempt) for rank in range(size)]
    try:
        until = time.monotonic() + LIMIT_S
        while not has_said(folder, size, f"# {attempt} {wait_for}"):
            assert not any(map(ended, ranks)), parent.said.read_text()
            assert time.monotonic() < until
            time.sleep(0.002)
        time.sleep(delay_s)
        assert not any(map(ended, ranks)), parent.said.read_text()
    finally:
        for rank in order:
            if not ended(ranks[rank]):
                signal.pidfd_send_signal(ranks[rank], signal.SIGKILL)
            time.sleep(0.01)
        assert all(ended(rank, LIMIT_S) for rank in ranks)
        for rank in ranks:
            os.close(rank)


def newest_whole(root):
    """The step of the newest checkpoint, which is proven whole."""
    for folder in manifest.newest_first(root):
        try:
            found = manifest.read(folder)
        except CheckpointUnreadable:
            pytest.fail(f"{folder.name} has the name of a checkpoint and no valid manifest")
        assert list(manifest.damages(folder, found)) == []
        return found.step
    return 0


def moment(left):
    """What was being done in a save, told from the folder that it left."""
    if left.name.startswith(".removing-"):
        return "while an old one was removed"
    names = {path.name for path in left.iterdir()}
    if manifest.FILE in names:
        return "manifest written, not renamed yet"
    if INDEX in names:
        return "index written, no manifest yet"
    return "files half written, or not all" if names else "folder made, empty"


def kill_again_and_again(parent, folder, size, seed, times, longest_s):
    """How many kills fell into which moment."""
    choice = random.Random(seed)
    root, reached, moments = folder / "checkpoints", 0, Counter()
    for attempt in range(times):
        before = set(leftovers(root))
        early = attempt % EARLY == EARLY - 1
        wait_for, delay_s = ("starts", choice.uniform(0, 0.2)) if early else ("begins", choice.uniform(0, longest_s))
        run_and_kill(parent, folder, size, attempt, wait_for, delay_s, choice.sample(range(size), size))
        told, whole = declared(folder), newest_whole(root)
        assert whole >= told, f"attempt {attempt}"
        assert told >= reached
        reached = told
        new = [left for left in leftovers(root) if left not in before]
        where = [moment(left) for left in sorted(new, reverse=True)] or [UNTOLD if whole > told else BETWEEN]
        moments[where[0] if has_said(folder, size, f"# {attempt} begins") else LOADING] += 1
    assert reached > 0
    return moments


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_a_declared_checkpoint_outlives_kill_9(tmp_path, parent, size):
    kill_again_and_again(parent, tmp_path, size, seed=size, times=5, longest_s=1.0)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("size", "times"), [(1, 120), (2, 80)])
def test_a_declared_checkpoint_outlives_200_kills(tmp_path, parent, size, times):
    """Two hundred moments; each start goes on where the last was killed, for over a minute of training in all."""
    moments = kill_again_and_again(parent, tmp_path, size, seed=10 + size, times=times, longest_s=0.8)
    for what, count in moments.most_common():
        sys.stdout.write(f"ranks {size}: {count:3} kills {what}\n")  # pytest -rP shows it
    in_saves = sum(count for what, count in moments.items() if what not in (LOADING, BETWEEN))
    assert in_saves >= times // 4, moments
    assert moments[LOADING] >= times // 20, moments

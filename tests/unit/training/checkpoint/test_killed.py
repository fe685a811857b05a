"""SIGKILL at any moment: every checkpoint reported as committed is complete and loads."""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from collections import Counter

import pytest

from holdfast.core import checkpoint_manifest
from holdfast.core.errors import CheckpointUnreadable
from holdfast.training.checkpoint.storage.commit import find_leftovers
from holdfast.training.checkpoint.storage.shard_files import INDEX
from tests.fork_server import fork_server
from tests.unit.training.checkpoint import killed

LIMIT_S = 60.0
LOADING, BETWEEN, UNREPORTED = (
    "starting and loading",
    "between two saves",
    "committed, not reported yet",
)
#: One in this many kills happens while the job starts and loads.
EARLY = 5


def ended(rank, within_s=0.0):
    return bool(select.select([rank], [], [], within_s)[0])


def has_written(folder, size, line):
    files = [folder / f"declared{rank}" for rank in range(size)]
    return all(file.exists() and line in file.read_text().splitlines() for file in files)


def last_committed(folder):
    """Return the newest step that was reported to a rank as committed."""
    lines = [line for file in folder.glob("declared*") for line in file.read_text().splitlines()]
    return max((int(line) for line in lines if not line.startswith("#")), default=0)


def run_and_kill(folder, size, attempt, wait_for, delay_s, order):
    """Start the ranks; kill them in ``order``, ``delay_s`` after all wrote ``wait_for``."""
    with (folder / "stderr").open("wb") as stderr:
        ranks = [
            os.pidfd_open(
                fork_server().start(killed.train, folder, rank, size, attempt, stderr=stderr).pid
            )
            for rank in range(size)
        ]
    try:
        until = time.monotonic() + LIMIT_S
        while not has_written(folder, size, f"# {attempt} {wait_for}"):
            assert not any(map(ended, ranks)), (folder / "stderr").read_text()
            assert time.monotonic() < until
            time.sleep(0.002)
        time.sleep(delay_s)
        assert not any(map(ended, ranks)), (folder / "stderr").read_text()
    finally:
        for rank in order:
            if not ended(ranks[rank]):
                signal.pidfd_send_signal(ranks[rank], signal.SIGKILL)
            time.sleep(0.01)
        assert all(ended(rank, LIMIT_S) for rank in ranks)
        for rank in ranks:
            os.close(rank)


def newest_valid(root):
    """Return the step of the newest checkpoint, all files of which are verified."""
    for folder in checkpoint_manifest.folders_newest_first(root):
        try:
            manifest = checkpoint_manifest.read_manifest(folder)
        except CheckpointUnreadable:
            pytest.fail(f"{folder.name} has the name of a checkpoint and no valid manifest")
        assert list(checkpoint_manifest.find_damage(folder, manifest)) == []
        return manifest.step
    return 0


def save_phase(leftover):
    """Return the phase of a killed save, derived from its leftover folder."""
    if leftover.name.startswith(".removing-"):
        return "while an old one was removed"
    names = {path.name for path in leftover.iterdir()}
    if checkpoint_manifest.FILE in names:
        return "manifest written, not renamed yet"
    if INDEX in names:
        return "index written, no manifest yet"
    return "files half written, or not all" if names else "folder made, empty"


def kill_repeatedly(folder, size, seed, times, longest_s):
    """Kill the job ``times`` times; return how many kills hit each phase."""
    choice = random.Random(seed)
    root, reached, phases = folder / "checkpoints", 0, Counter()
    for attempt in range(times):
        before = set(find_leftovers(root))
        early = attempt % EARLY == EARLY - 1
        wait_for, delay_s = (
            ("starts", choice.uniform(0, 0.2))
            if early
            else ("begins", choice.uniform(0, longest_s))
        )
        run_and_kill(folder, size, attempt, wait_for, delay_s, choice.sample(range(size), size))
        reported, valid = last_committed(folder), newest_valid(root)
        assert valid >= reported, f"attempt {attempt}"
        assert reported >= reached
        reached = reported
        new = [leftover for leftover in find_leftovers(root) if leftover not in before]
        where = [save_phase(leftover) for leftover in sorted(new, reverse=True)] or [
            UNREPORTED if valid > reported else BETWEEN
        ]
        phases[where[0] if has_written(folder, size, f"# {attempt} begins") else LOADING] += 1
    assert reached > 0
    return phases


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
def test_a_committed_checkpoint_survives_sigkill(tmp_path, size):
    kill_repeatedly(tmp_path, size, seed=size, times=5, longest_s=1.0)


@pytest.mark.matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("size", "times"), [(1, 120), (2, 80)])
def test_committed_checkpoints_survive_200_kills(tmp_path, size, times):
    """Each start resumes where the last was killed; over a minute of training in total."""
    phases = kill_repeatedly(tmp_path, size, seed=10 + size, times=times, longest_s=0.8)
    for what, count in phases.most_common():
        sys.stdout.write(f"ranks {size}: {count:3} kills {what}\n")  # shown by pytest -rP
    in_saves = sum(count for what, count in phases.items() if what not in (LOADING, BETWEEN))
    assert in_saves >= times // 4, phases
    assert phases[LOADING] >= times // 20, phases

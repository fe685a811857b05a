"""The decision tree: every step is reachable and ends; commands decide by their exit status."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest

from holdfast.cli import COMMANDS
from holdfast.diagnose.guided.tree import FIRST, read_tree
from holdfast.diagnose.guided.walk import walk_tree

TREE = read_tree()


def paths(step_id=FIRST, before=()):
    """Yield all paths of steps from the first one; fails on a cycle."""
    assert step_id not in before, f"cycle: {before}"
    step = TREE.steps[step_id]
    if not step.following:
        yield (*before, step_id)
    for following in step.following:
        yield from paths(following, (*before, step_id))


def test_every_step_is_reached_and_every_path_ends_with_advice():
    reached = set()
    for path in paths():
        reached |= set(path)
        last = TREE.steps[path[-1]]
        assert not last.command
        assert not last.answers
        assert sum(bool(TREE.steps[each].command) for each in path) <= 4  # five minutes
    assert reached == TREE.steps.keys()


def test_commands_exist_and_their_values_have_questions():
    for step in TREE.step:
        assert set(step.values) <= TREE.values.keys()
        if step.command:
            program, command, *_ = shlex.split(step.command)
            assert (program, command in COMMANDS) == ("holdfast", True)
            assert step.found
            assert step.nothing
            assert step.unknown


def walk(answers, statuses, values=None):
    """Walk with these answers (numbers from 1), and statuses of commands."""
    answered, ended, ran = iter(answers), iter(statuses), []

    def run(words):
        ran.append(shlex.join(words))
        return next(ended)

    taken = walk_tree(
        TREE, dict(values or {}), lambda *_: next(answered) - 1, lambda _: "PATH", run
    )
    return taken, ran


def test_a_found_cause_ends_the_walk():
    taken, ran = walk([2], [1], {"logs": "a b.log"})
    assert ran == ["holdfast diagnose 'a b.log'"]
    assert [step.id for step in taken.steps] == ["start", "failed", "remedy"]
    assert taken.exit_status == 1


def test_without_a_verdict_the_next_command_follows():
    taken, ran = walk([2], [3, 0])
    assert ran == ["holdfast diagnose PATH", "holdfast check"]
    assert taken.steps[-1].id == "failed-again"
    assert taken.exit_status == 3


@pytest.mark.parametrize(
    ("status", "following"), [(0, "slow"), (1, "remedy"), (2, "hung-where"), (3, "hung-where")]
)
def test_following_steps(status, following):
    assert TREE.steps["hung"].after_status(status) == following


@pytest.mark.slow
def test_the_command_line_reads_answers_and_runs_the_commands(tmp_path):
    (tmp_path / "job.log").write_text("RuntimeError: CUDA error: out of memory\n")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "diagnose", "--guided", "--json", "job.log"],
        cwd=tmp_path,
        input="9\n2\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    steps = json.loads(done.stdout)["guided"]
    assert [step["command"] for step in steps][1] == "holdfast diagnose job.log"
    assert steps[1]["status"] == done.returncode == 1
    assert "1  The job runs, but no rank advances" in done.stderr

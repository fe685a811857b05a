"""Stall limits are learned from silences that ended in progress, and stored for the next run."""

import json

import pytest

from holdfast.core.rank_table import ProcessState, RaisedException, RankState
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.limit_learning import LimitLearner
from holdfast.watcher.rules.section_limits import LIMITS_FILE
from holdfast.watcher.rules.stall import StallLimits


def table(silent_since, now, **state):
    return JobSummary(
        (RankState(rank=0, life=ProcessState.RUNNING, **state),), {}, 1, silent_since, now
    )


@pytest.fixture
def learner(tmp_path):
    found = LimitLearner(StallLimits())
    found.start(tmp_path / LIMITS_FILE, "train.py, 2 ranks")
    return found


def test_a_silence_counts_after_it_ended(learner, tmp_path):
    learner.observe(table(100.0, 100.2, step=1))
    learner.observe(table(100.0, 130.0, step=1, phase="evaluation", phase_budget_s=900.0))
    learner.save()
    assert not (tmp_path / LIMITS_FILE).exists()
    learner.observe(table(130.5, 130.6, step=1))
    learner.save()
    (job,) = json.loads((tmp_path / LIMITS_FILE).read_text())["jobs"].values()
    assert job["silences"] == {"evaluation": {"longest_s": 30.0, "count": 1}}


def test_a_hang_changes_no_limit(learner, tmp_path):
    learner.observe(table(100.0, 100.2))
    learner.observe(table(100.0, 900.0))
    learner.start(tmp_path / LIMITS_FILE, "train.py, 2 ranks")  # a restart
    learner.observe(table(901.0, 901.1))
    assert learner.limits == StallLimits()


def test_a_timed_out_wait_changes_no_limit(learner):
    learner.observe(table(100.0, 100.2, step=1))
    learner.observe(table(100.0, 115.0, step=1))
    learner.observe(
        table(115.1, 115.2, step=1, raised=RaisedException("RuntimeError", "Timed out", None))
    )
    assert learner.limits == StallLimits()


def test_the_next_run_uses_the_learned_limits(learner, tmp_path):
    learner.observe(table(100.0, 100.2))
    learner.observe(table(100.0, 150.0))
    learner.observe(table(150.1, 150.2))
    assert learner.limits.first_step_s == 250.0
    learner.save()
    following, other = LimitLearner(StallLimits()), LimitLearner(StallLimits())
    following.start(tmp_path / LIMITS_FILE, "train.py, 2 ranks")
    other.start(tmp_path / LIMITS_FILE, "other.py, 2 ranks")
    assert (following.limits.first_step_s, other.limits) == (250.0, StallLimits())


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff\0", b"[[" * 9000, b'{"schema": "x"}', b'{"jobs": {"a": {"silences": 3}}}'],
)
def test_a_malformed_file_is_ignored(tmp_path, content):
    (tmp_path / LIMITS_FILE).parent.mkdir()
    (tmp_path / LIMITS_FILE).write_bytes(content)
    learner = LimitLearner(StallLimits())
    learner.start(tmp_path / LIMITS_FILE, "a")
    assert learner.limits == StallLimits()
    learner.observe(table(100.0, 130.0))
    learner.observe(table(130.1, 130.2))
    learner.save()
    assert "setup" in (tmp_path / LIMITS_FILE).read_text()


def test_an_unwritable_folder_is_ignored(tmp_path):
    (tmp_path / "file").write_text("")
    learner = LimitLearner(StallLimits())
    learner.start(tmp_path / "file" / LIMITS_FILE, "a")
    learner.observe(table(100.0, 130.0))
    learner.observe(table(130.1, 130.2))
    learner.save()
    assert learner.limits.first_step_s == 150.0


def test_the_file_is_not_taken_for_a_history_of_collectives(tmp_path):
    assert not (tmp_path / LIMITS_FILE).match(str(tmp_path / "*.json"))

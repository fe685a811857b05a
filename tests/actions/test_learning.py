"""What is learned of a job's silences: only what ended well, and kept for the next run."""

import json

import pytest

from holdfast.actions.learning import FILE, Learner
from holdfast.facts.node import Summary
from holdfast.facts.ranks import Life, RankState
from holdfast.rules.stall import Limits


def table(silent_since, now, **state):
    return Summary((RankState(rank=0, life=Life.RUNNING, **state),), {}, 1, silent_since, now)


@pytest.fixture
def learner(tmp_path):
    found = Learner(Limits())
    found.begin(tmp_path / FILE, "train.py, 2 ranks")
    return found


def test_a_silence_counts_when_it_is_over(learner, tmp_path):
    learner.see(table(100.0, 100.2, step=1))
    learner.see(table(100.0, 130.0, step=1, phase="evaluation", phase_budget_s=900.0))
    learner.keep()
    assert not (tmp_path / FILE).exists()
    learner.see(table(130.5, 130.6, step=1))
    learner.keep()
    (job,) = json.loads((tmp_path / FILE).read_text())["jobs"].values()
    assert job["silences"] == {"evaluation": {"longest_s": 30.0, "count": 1}}


def test_a_hang_teaches_nothing(learner, tmp_path):
    learner.see(table(100.0, 100.2))
    learner.see(table(100.0, 900.0))
    learner.begin(tmp_path / FILE, "train.py, 2 ranks")  # the workers were started again
    learner.see(table(901.0, 901.1))
    assert learner.limits == Limits()


def test_the_next_run_knows(learner, tmp_path):
    learner.see(table(100.0, 100.2))
    learner.see(table(100.0, 150.0))
    learner.see(table(150.1, 150.2))
    assert learner.limits.first_step_s == 250.0
    learner.keep()
    following, other = Learner(Limits()), Learner(Limits())
    following.begin(tmp_path / FILE, "train.py, 2 ranks")
    other.begin(tmp_path / FILE, "other.py, 2 ranks")
    assert (following.limits.first_step_s, other.limits) == (250.0, Limits())


@pytest.mark.parametrize(
    "content", [b"", b"\xff\0", b"[[" * 9000, b'{"schema": "x"}', b'{"jobs": {"a": {"silences": 3}}}']
)
def test_noise_is_no_advice(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    learner = Learner(Limits())
    learner.begin(tmp_path / FILE, "a")
    assert learner.limits == Limits()
    learner.see(table(100.0, 130.0))
    learner.see(table(130.1, 130.2))
    learner.keep()
    assert "setup" in (tmp_path / FILE).read_text()


def test_a_folder_that_takes_nothing_is_no_harm(tmp_path):
    (tmp_path / "file").write_text("")
    learner = Learner(Limits())
    learner.begin(tmp_path / "file" / FILE, "a")
    learner.see(table(100.0, 130.0))
    learner.see(table(130.1, 130.2))
    learner.keep()
    assert learner.limits.first_step_s == 150.0

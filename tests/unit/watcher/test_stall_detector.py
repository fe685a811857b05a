"""From a close observation to a verdict."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from holdfast.core.rank_table import ProcessState, RaisedException, ScriptEnd, ThreadStack
from holdfast.watcher import stall_detector as module
from holdfast.watcher.job_summary import JobSummary
from holdfast.watcher.rules.stall import StallLimits
from holdfast.watcher.stall_detector import StallDetector
from tests.unit.watcher.rank_tables import LOADER, call, history, row, world

LIMITS = StallLimits()


def judged_after(silent_s, **late):
    """Return the outcome if rank 1 waits in init_process_group for rank 0, which made no call."""
    early = row(
        1, call(1, "init_process_group", group="init_process_group"), step=None, step_p99_s=None
    )
    ranks = (row(0, at=LOADER, step=None, step_p99_s=None, **late), early)
    return StallDetector(LIMITS).judge_silence(
        JobSummary(ranks, {}, 2, silent_since=0.0, time=silent_s), silent_s
    )


@pytest.mark.parametrize("busy", [{"cpu_share": 0.9}, {"io_bytes": 10_000_000}])
def test_a_rank_that_still_imports_gets_more_time(busy):
    assert judged_after(6.0, **busy).verdict is None
    assert "rank 0 has not reached init_process_group" in judged_after(300.0, **busy).note


def test_a_rank_that_sleeps_before_joining_gets_the_first_step_limit():
    before = judged_after(LIMITS.first_step_s - 1)
    assert before.verdict is None
    assert "until 60 s because it has not finished its first step" in before.suspicion
    root = judged_after(LIMITS.first_step_s + 1).verdict.root
    assert (root.cause, root.subject.rank) == ("store-wait", 0)


def test_a_rank_that_computes_while_others_wait_is_suspected_long_before_the_job_is_ended():
    busy = row(0, at=LOADER, step=None, step_p99_s=None, cpu_share=0.98)
    ranks = (busy, row(1, *history(2), call(3), step=None, step_p99_s=None))
    silent = JobSummary(ranks, world(2), 2, silent_since=0.0, time=31.0)
    detector = StallDetector(LIMITS)
    assert detector.judge_silence(silent, 29.0).suspicion is None
    outcome = detector.judge_silence(silent, 31.0)
    assert outcome.verdict is None
    assert "computes at data.py:12 in load()" in outcome.suspicion
    assert "until 1800 s because it is computing (98% of a core)" in outcome.suspicion
    assert outcome.suspected.root.cause == "computing-long"
    assert detector.judge_silence(silent, 33.0).suspicion is None
    now = time.time()
    advanced = JobSummary((replace(busy, progress=now), ranks[1]), world(2), 2, now, now)
    assert "suspicion withdrawn" in detector.update(advanced, None, None).withdrawal


@pytest.mark.parametrize(
    ("late", "is_suspected"),
    [
        ({}, True),
        ({"step": None, "step_p99_s": None}, False),
        ({"cpu_share": 0.9}, False),
        ({"step": None, "ended": ScriptEnd("end of script")}, True),  # a thread keeps it alive
        ({"life": ProcessState.DEAD, "exit_code": 0}, True),
    ],
)
def test_a_job_whose_ranks_all_wait_outside_of_collectives_is_suspected(late, is_suspected):
    ranks = (row(0, *history(9), at=LOADER), row(1, *history(9), at=LOADER, **late))
    silent = JobSummary(ranks, world(2), 2, silent_since=0.0, time=31.0)
    outcome = StallDetector(LIMITS).judge_silence(silent, 31.0)
    assert outcome.verdict is None
    assert (outcome.suspicion is not None, outcome.note is None) == (is_suspected, is_suspected)
    if is_suspected:
        assert outcome.suspected.root.cause == "stalled-outside-collectives"


@pytest.mark.parametrize(
    ("function", "is_suspected"), [("evaluate", True), ("save_checkpoint", False)]
)
def test_an_evaluation_that_does_nothing_is_suspected(function, is_suspected):
    """Rank 0 waits in its evaluation for a worker that has died."""
    line = replace(LOADER, function=function)
    stack = (ThreadStack((line,)),) * 2
    idle = row(0, *history(30), stacks=stack)
    silent = JobSummary((idle, row(1, *history(30), call(31))), world(2), 2, 0.0, 31.0)
    outcome = StallDetector(LIMITS).judge_silence(silent, 31.0)
    assert outcome.verdict is None
    assert (outcome.suspected is not None) == is_suspected


class Lint:
    """A fake linter."""

    def __init__(self, is_running):
        self.is_running = is_running

    def start(self, ranks):
        pass

    def hints(self, _wait_s):
        return ()


def diverged():
    """Return two ranks in different collectives of the same number."""
    ranks = (row(0, call(1, "barrier"), at=LOADER), row(1, call(1, "all_reduce"), at=LOADER))
    return JobSummary(ranks, {}, 2, silent_since=time.time() - 60, time=time.time())


def test_a_verdict_waits_for_the_linter(monkeypatch):
    detector, table = StallDetector(StallLimits(stall_s=1.0, first_step_s=1.0)), diverged()
    lint = Lint(is_running=True)
    monkeypatch.setattr(detector, "_lint", lint)
    monkeypatch.setattr("holdfast.watcher.stall_detector.BETWEEN_SAMPLES_S", 0.0)
    for _ in range(3):
        assert detector.update(table, lambda: table, lambda own: own).verdict is None
    lint.is_running = False
    outcome = detector.update(table, lambda: table, lambda own: own)
    assert outcome.verdict.root.cause == "mismatched-operation"
    assert outcome.silent_s > 59
    assert (
        detector.update(table, lambda: table, lambda own: own).verdict is None
    )  # it is returned once


def test_a_job_that_advances_during_linting_is_no_hang(monkeypatch):
    detector, table = StallDetector(StallLimits(stall_s=1.0, first_step_s=1.0)), diverged()
    lint = Lint(is_running=True)
    monkeypatch.setattr(detector, "_lint", lint)
    monkeypatch.setattr("holdfast.watcher.stall_detector.BETWEEN_SAMPLES_S", 0.0)
    for _ in range(3):
        detector.update(table, lambda: table, lambda own: own)
    lint.is_running = False
    later = replace(table, silent_since=time.time())
    assert detector.update(later, lambda: later, lambda own: own).verdict is None


# A suspicion is reported before it is acted on


class Job:
    """A job on a fake clock: rank 0 sleeps from second 1000, rank 1 waits for it."""

    def __init__(self, monkeypatch, limits=LIMITS, *, may_restart=True):
        self.now = 1000.0
        self.progress = {0: 1000.0, 1: 1000.0}
        self.sleeper = {}
        self.waiter = {}
        self.detector = StallDetector(limits, may_restart=may_restart)
        monkeypatch.setattr(module.time, "time", lambda: self.now)
        monkeypatch.setattr(self.detector, "_lint", Lint(is_running=False))

    def table(self):
        calls = (*history(30), call(31))
        sleeper = row(0, *calls[:-1], at=LOADER, progress=self.progress[0], **self.sleeper)
        waiter = row(1, *calls, at=LOADER, progress=self.progress[1], **self.waiter)
        return JobSummary((sleeper, waiter), world(2), 2, max(self.progress.values()), self.now)

    def outcomes_until(self, second):
        """Return all non-empty outcomes of ticks, two per second."""
        found = []
        while self.now < second:
            self.now += 0.5
            outcome = self.detector.update(self.table(), self.table, lambda own: own)
            if outcome.verdict or outcome.suspicion or outcome.withdrawal:
                found.append((self.now - 1000, outcome))
        return found


@pytest.fixture
def job(monkeypatch):
    return Job(monkeypatch)


def test_a_rank_that_may_recover_is_suspected_first_and_acted_on_after_a_minute(job):
    (early, suspicion), (late, acted) = job.outcomes_until(1200)
    assert (early < 8, suspicion.verdict, suspicion.withdrawal) == (True, None, None)
    assert "suspected hang" in suspicion.suspicion
    assert "rank 0 never entered all_reduce #31; it is blocked at data.py:12" in suspicion.suspicion
    assert "SYNC002 rank-missing-collective" in suspicion.suspicion
    assert "60 s" in suspicion.suspicion
    assert 60 <= late < 64
    assert (acted.verdict.root.cause, acted.verdict.root.subject.rank) == (
        "rank-missing-collective",
        0,
    )
    assert acted.silent_s >= 60
    assert acted.suspicion is None


def test_the_suspicion_is_withdrawn_once_when_the_rank_advances(job):
    job.outcomes_until(1010)
    job.progress = {0: 1010.2, 1: 1010.2}
    ((_, outcome),) = job.outcomes_until(1012)
    assert "suspicion withdrawn: the job advanced after 10.2 s" in outcome.withdrawal
    assert "rank 0 never entered all_reduce #31" in outcome.withdrawal
    assert (outcome.verdict, outcome.suspicion) == (None, None)
    ((_, again), _) = job.outcomes_until(1100)
    assert "suspected hang" in again.suspicion  # it sleeps again


def test_a_suspected_rank_that_is_then_stopped_is_acted_on_at_once(job):
    job.outcomes_until(1020)
    job.sleeper = {"life": ProcessState.STOPPED}
    ((late, outcome),) = job.outcomes_until(1050)
    assert late < 24
    assert outcome.verdict.root.cause == "rank-stopped"


def test_a_stopped_rank_is_acted_on_without_a_suspicion(job):
    job.sleeper = {"life": ProcessState.STOPPED}
    ((early, outcome),) = job.outcomes_until(1100)
    assert early < 8
    assert outcome.verdict.root.cause == "rank-stopped"


def test_a_stopped_rank_of_a_job_without_a_restart_may_be_resumed(monkeypatch):
    job = Job(monkeypatch, may_restart=False)
    job.sleeper = {"life": ProcessState.STOPPED}
    ((_, suspicion),) = job.outcomes_until(1020)
    assert "suspected hang" in suspicion.suspicion
    assert "PROC007 rank-stopped" in suspicion.suspicion
    job.sleeper, job.progress = {}, {0: 1020.2, 1: 1020.2}
    ((_, outcome),) = job.outcomes_until(1022)
    assert "suspicion withdrawn" in outcome.withdrawal
    job.sleeper = {"life": ProcessState.STOPPED}
    _, (late, acted) = job.outcomes_until(1150)
    assert 80 <= late < 86
    assert acted.verdict.root.cause == "rank-stopped"


def test_the_user_can_shorten_the_delay(monkeypatch):
    ((early, outcome),) = Job(monkeypatch, StallLimits(act_after_s=5.0)).outcomes_until(1100)
    assert early < 8
    assert outcome.verdict.root.cause == "rank-missing-collective"


def test_timed_out_ranks_do_not_withdraw_the_suspicion_or_change_the_root(job):
    job.outcomes_until(1015)
    job.progress[1] = 1015.1  # its call failed
    assert job.outcomes_until(1016) == []
    raised = RaisedException(
        "RuntimeError", "Timed out waiting 15000ms for recv operation to complete", None
    )
    job.waiter = {"raised": raised, "exit_code": 1, "life": ProcessState.DEAD}
    verdict = job.detector.final_verdict(job.table())
    assert (verdict.root.cause, verdict.root.subject.rank) == ("rank-missing-collective", 0)
    assert "rank 1 is blocked in all_reduce #31" in verdict.consequences[0].message
    assert "rank 1 then failed: RuntimeError: Timed out" in verdict.consequences[-1].message
    assert "rank-killed" not in {each.cause for each in verdict.ruled_out}


def test_a_rank_that_dies_of_its_own_error_is_the_root(job):
    job.outcomes_until(1015)
    job.waiter = {
        "raised": RaisedException("ValueError", "bad sample", None),
        "exit_code": 1,
        "life": ProcessState.DEAD,
    }
    root = job.detector.final_verdict(job.table()).root
    assert (root.cause, root.subject.rank) == ("python-exception-on-one-rank", 1)


def test_no_suspicion_while_the_report_of_a_node_is_late(monkeypatch):
    """The ranks here wait for a rank whose node has not reported for 6 s: it may be cut off."""
    now = time.time()
    ranks = (
        row(0, *history(9), call(10), at=LOADER, progress=now - 7),
        row(1, *history(9), host="b", life=ProcessState.UNKNOWN, progress=now - 7),
    )

    def outcome(silent_s):
        late = replace(ranks[1], node_silent_s=silent_s)
        table = JobSummary((ranks[0], late), world(2), 2, now - 7, now)
        detector = StallDetector(LIMITS)
        detector.update(table, lambda: table, lambda own: own)
        monkeypatch.setattr(time, "time", lambda: now + 1.5)
        found = detector.update(table, lambda: table, lambda own: own)
        monkeypatch.undo()
        return found

    monkeypatch.setenv("HOLDFAST_LINT", "off")
    late = outcome(6.0)
    assert (late.suspicion, late.verdict) == (None, None)
    root = outcome(9.0).root
    assert (root.cause, root.subject.rank) == ("peer-lost", 1)

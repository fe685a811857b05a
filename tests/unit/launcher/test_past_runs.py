"""Failures and adjustments from earlier runs of a job."""

import pytest
from msgspec.structs import replace

from holdfast.core import ledger
from holdfast.core.adjustments import NO_ADJUSTMENTS, Adjustments
from holdfast.core.errors import InvalidValue
from holdfast.core.failures import RecoveryAction, RecoveryDecision
from holdfast.core.ledger import Ledger, LedgerEvent, LedgerRecord
from holdfast.launcher import past_runs
from holdfast.launcher.policy import DO_NOT_REQUEUE, RecoveryOptions, decide
from tests.unit.launcher.policy.failures import MANY, failure, raised

BACK = Adjustments(resume_before=50, loss_scale=0.5, micro_batches=2)


class History:
    """Write ledgers of runs of one host into a history."""

    def __init__(self, folder, host="a"):
        self.folder, self.host, self.at = folder, host, 0.0
        folder.mkdir(exist_ok=True)

    def run(self, *failed, status=1, command="train.py", started=True):
        """Add a run with its failures as (failure, decision); ``status`` is None if the run was killed."""
        folder = self.folder / f"{self.host}{self.at}"
        folder.mkdir()
        writer = Ledger(folder, self.folder / f"{self.host}.jsonl")
        self.add(writer, event=LedgerEvent.BEGUN, text=command)
        for now, decision in failed:
            self.add(writer, event=LedgerEvent.STARTED)
            self.add(
                writer,
                event=LedgerEvent.FAILED,
                failure=replace(now, at=self.at),
                decision=decision,
            )
        if started:
            self.add(writer, event=LedgerEvent.STARTED)
        if status is not None:
            self.add(writer, event=LedgerEvent.ENDED, status=status)
        return past_runs.read_unfinished(self.folder)

    def add(self, writer, **fields):
        self.at += 1.0
        writer.add(LedgerRecord(at=self.at, **fields))


def decision_to(which, **other):
    return RecoveryDecision(action=which, reason="r", **other)


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "kept")


def test_failures_count_until_a_run_succeeds(history):
    assert past_runs.read_unfinished(history.folder) == ()
    records = history.run(
        (failure(), decision_to(RecoveryAction.RESTART)),
        (failure(), decision_to(RecoveryAction.STOP)),
        started=False,
    )
    assert [each.decision.action for each in past_runs.earlier_failures(records)] == [
        RecoveryAction.RESTART,
        RecoveryAction.STOP,
    ]
    assert (
        len(
            past_runs.earlier_failures(
                history.run((failure(), decision_to(RecoveryAction.STOP)), started=False)
            )
        )
        == 3
    )
    assert history.run(status=0) == ()


def test_reports_and_preemptions_do_not_count(history):
    records = history.run(
        (failure(), decision_to(RecoveryAction.REPORT)),
        (failure(preempted=143), decision_to(RecoveryAction.STOP)),
    )
    assert past_runs.earlier_failures(records) == ()
    assert past_runs.next_adjustments(records) == NO_ADJUSTMENTS


def test_resume_before_applies_only_if_nothing_ran_since(history):
    failed_run = (failure(saved=60), decision_to(RecoveryAction.RESTART, adjustments=BACK))
    stopped = (failure(loaded=40), decision_to(RecoveryAction.STOP))
    assert past_runs.next_adjustments(history.run(failed_run, stopped, started=False)) == BACK
    killed = past_runs.next_adjustments(history.run(failed_run, status=None))
    assert (killed.resume_before, killed.loss_scale, killed.micro_batches) == (None, 1.0, 2)
    saved = (failure(saved=70), decision_to(RecoveryAction.STOP))
    assert (
        past_runs.next_adjustments(history.run(failed_run, saved, started=False)).resume_before
        is None
    )


def test_the_policy_uses_failures_of_earlier_runs(history):
    first = raised(step=57, saved=50)
    records = history.run((first, decide(first, RecoveryOptions())), started=False)
    next_decision = decide(raised(step=57, loaded=50), MANY, past_runs.earlier_failures(records))
    assert next_decision.adjustments.resume_before == 50


def test_failures_before_status_93_do_not_count_as_without_progress(history):
    stuck = [(failure(saved=50), decision_to(RecoveryAction.RESTART))] * 3
    records = history.run(
        *stuck,
        (failure(saved=50), decision_to(RecoveryAction.STOP, status=DO_NOT_REQUEUE)),
        started=False,
    )
    assert (
        decide(failure(loaded=50), MANY, past_runs.earlier_failures(records)).action
        is RecoveryAction.RESTART
    )
    without = past_runs.earlier_failures(records)[:-1]
    assert decide(failure(loaded=50), MANY, without).action is RecoveryAction.STOP


def test_a_failure_recorded_by_two_hosts_counts_once(history):
    failed_run = (failure(), decision_to(RecoveryAction.STOP))
    history.run(failed_run, started=False)
    records = History(history.folder, "b").run(failed_run, started=False)
    assert len(past_runs.earlier_failures(records)) == 1
    assert {each.event for each in ledger.read_ledger(history.folder)} == {
        LedgerEvent.BEGUN,
        LedgerEvent.STARTED,
        LedgerEvent.FAILED,
        LedgerEvent.ENDED,
    }


def test_an_implied_history_is_specific_to_the_command(history):
    history.run((failure(), decision_to(RecoveryAction.STOP)))
    assert past_runs.read_unfinished(history.folder, "train.py")
    assert past_runs.read_unfinished(history.folder, "other.py") == ()


def test_a_slurm_job_has_a_history_by_default(tmp_path):
    assert (
        past_runs.slurm_history({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}, tmp_path).name
        == "slurm-12.0"
    )
    assert past_runs.slurm_history({"SLURM_JOB_ID": "12"}, tmp_path).name == "slurm-12.batch"
    assert past_runs.slurm_history({}, tmp_path) is None
    assert past_runs.slurm_history({"SLURM_JOB_ID": "../.."}, tmp_path) is None


def test_a_folder_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidValue, match="--history"):
        past_runs.create_history(tmp_path / "file" / "kept")

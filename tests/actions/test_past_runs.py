"""What a job knows of its earlier runs, and what it had better not believe."""

import pytest
from msgspec.structs import replace

from holdfast.actions import ledger, past_runs
from holdfast.actions.ledger import Event, Ledger, Record
from holdfast.actions.policy import DO_NOT_REQUEUE, Course, Decision, Terms, decide
from holdfast.adjustments import NONE, Adjustments
from holdfast.errors import BadValue
from tests.actions.policy.failures import MANY, failure, raised

BACK = Adjustments(resume_before=50, loss_scale=0.5, micro_batches=2)


class History:
    """Writes the ledgers of runs of one host into a history."""

    def __init__(self, folder, host="a"):
        self.folder, self.host, self.at = folder, host, 0.0
        folder.mkdir(exist_ok=True)

    def run(self, *failed, status=1, command="train.py", started=True):
        """One run: its failures as (failure, decision), each after a start; None: the run was killed."""
        place = self.folder / f"{self.host}{self.at}"
        place.mkdir()
        book = Ledger(place, self.folder / f"{self.host}.jsonl")
        self.add(book, event=Event.BEGUN, text=command)
        for now, decision in failed:
            self.add(book, event=Event.STARTED)
            self.add(book, event=Event.FAILED, failure=replace(now, at=self.at), decision=decision)
        if started:
            self.add(book, event=Event.STARTED)
        if status is not None:
            self.add(book, event=Event.ENDED, status=status)
        return past_runs.unfinished(self.folder)

    def add(self, book, **fields):
        self.at += 1.0
        book.add(Record(at=self.at, **fields))


def course(which, **other):
    return Decision(course=which, reason="r", **other)


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "kept")


def test_what_failed_is_known_until_a_run_ends_well(history):
    assert past_runs.unfinished(history.folder) == ()
    records = history.run((failure(), course(Course.RESTART)), (failure(), course(Course.STOP)), started=False)
    assert [each.decision.course for each in past_runs.failures(records)] == [Course.RESTART, Course.STOP]
    assert len(past_runs.failures(history.run((failure(), course(Course.STOP)), started=False))) == 3
    assert history.run(status=0) == ()


def test_what_was_only_told_and_preemptions_count_for_nothing(history):
    records = history.run((failure(), course(Course.REPORT)), (failure(preempted=143), course(Course.STOP)))
    assert past_runs.failures(records) == ()
    assert past_runs.adjusted(records) == NONE


def test_to_go_back_is_asked_for_only_where_nothing_ran_since(history):
    told = (failure(saved=60), course(Course.RESTART, adjustments=BACK))
    stopped = (failure(loaded=40), course(Course.STOP))
    assert past_runs.adjusted(history.run(told, stopped, started=False)) == BACK
    killed = past_runs.adjusted(history.run(told, status=None))
    assert (killed.resume_before, killed.loss_scale, killed.micro_batches) == (None, 1.0, 2)
    saved = (failure(saved=70), course(Course.STOP))
    assert past_runs.adjusted(history.run(told, saved, started=False)).resume_before is None


def test_the_policy_goes_on_where_it_was(history):
    first = raised(step=57, saved=50)
    records = history.run((first, decide(first, Terms())), started=False)
    again = decide(raised(step=57, loaded=50), MANY, past_runs.failures(records))
    assert again.adjustments.resume_before == 50


def test_who_starts_it_after_it_was_given_up_has_changed_something(history):
    stuck = [(failure(saved=50), course(Course.RESTART))] * 3
    records = history.run(*stuck, (failure(saved=50), course(Course.STOP, status=DO_NOT_REQUEUE)), started=False)
    assert decide(failure(loaded=50), MANY, past_runs.failures(records)).course is Course.RESTART
    without = past_runs.failures(records)[:-1]
    assert decide(failure(loaded=50), MANY, without).course is Course.STOP


def test_two_hosts_tell_of_one_failure_once(history):
    told = (failure(), course(Course.STOP))
    history.run(told, started=False)
    records = History(history.folder, "b").run(told, started=False)
    assert len(past_runs.failures(records)) == 1
    assert {each.event for each in ledger.read(history.folder)} == {Event.BEGUN, Event.STARTED, Event.FAILED,
                                                                    Event.ENDED}  # fmt: skip


def test_a_history_that_nobody_named_is_that_of_one_command(history):
    history.run((failure(), course(Course.STOP)))
    assert past_runs.unfinished(history.folder, "train.py")
    assert past_runs.unfinished(history.folder, "other.py") == ()


def test_a_job_of_slurm_has_a_history_by_itself(tmp_path):
    assert past_runs.of_slurm({"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}, tmp_path).name == "slurm-12.0"
    assert past_runs.of_slurm({"SLURM_JOB_ID": "12"}, tmp_path).name == "slurm-12.batch"
    assert past_runs.of_slurm({}, tmp_path) is None
    assert past_runs.of_slurm({"SLURM_JOB_ID": "../.."}, tmp_path) is None


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(BadValue, match="--history"):
        past_runs.folder(tmp_path / "file" / "kept")

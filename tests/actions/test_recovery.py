"""What a node keeps over restarts: adjustments for workers, the wait, the gate, and what a late node is told."""

import json

import pytest

from holdfast import adjustments, blackbox
from holdfast.actions import ledger, recovery
from holdfast.actions.gate import Passing
from holdfast.actions.policy import Course, Decision, Past, Terms
from holdfast.actions.recovery import Recovery
from holdfast.actions.run_folder import RunFolder
from holdfast.adjustments import Adjustments
from holdfast.errors import HostUnfit
from holdfast.findings import Verdict, finding
from holdfast.rules.causes import by_name
from holdfast.runtime.generation import Look
from tests.actions.policy.failures import failure, trouble


class Closed:
    """Stands for a gate that lets nobody in."""

    begun = 0

    def begin(self):
        self.begun += 1

    def look(self):
        return Passing((finding(by_name("gpu-memory-worn"), "GPU 3 could not replace a bad row of its memory"),), 0.1)


@pytest.fixture
def make(tmp_path):
    def made(gate=None, terms=Terms(restarts=9)):  # noqa: B008 - frozen
        (tmp_path / "shm").mkdir(exist_ok=True)
        folder = RunFolder(tmp_path / "runs", workers=1, records=64, shm=tmp_path / "shm")
        return Recovery(folder, terms, print, gate), folder

    return made


NAN = {"scene": {"step": 9, "trouble": {"what": "nan", "step": 9, "first": 9, "last": 9, "time": 5.0}}}


def test_workers_are_told_what_to_do_differently(make):
    keeps, folder = make()
    assert keeps.variables() == {}
    entry = keeps.decide(Verdict(question="?"), NAN, 0, Look({0: 1}))
    keeps.take(entry, None)
    path = folder.path / recovery.ADJUSTMENTS
    assert keeps.variables() == {"HOLDFAST_ADJUSTMENTS": str(path.absolute())}
    assert adjustments.read(path).resume_before == 8
    assert (folder.boxes / blackbox.TEARDOWN).exists()
    assert ledger.read(folder.path)[-1].decision == entry.decision


def test_the_wait_is_before_the_start_and_only_once(make, monkeypatch):
    waited = []
    monkeypatch.setattr(recovery.time, "sleep", waited.append)
    keeps, _ = make()
    keeps.prepare()
    keeps.take(Past(failure(), Decision(course=Course.RESTART, reason="r", delay_s=4.0)), None)
    keeps.prepare()
    keeps.prepare()
    assert waited == [4.0]


def test_a_host_that_is_refused_is_written_down_and_fails(make):
    gate = Closed()
    keeps, folder = make(gate)
    with pytest.raises(HostUnfit, match=r"does not take part in the job: GPU 3 could not replace .*\(GPU009 gpu-mem"):
        keeps.prepare()
    assert ledger.read(folder.path)[-1].event is ledger.Event.REFUSED
    assert keeps.status(3) == 1
    keeps.take(Past(failure(), Decision(course=Course.RESTART, reason="r")), None)
    assert gate.begun == 1  # while workers are being ended


def test_the_status_of_the_last_decision_is_that_of_the_job(make):
    keeps, _ = make()
    assert keeps.status(1) == 1
    keeps.take(Past(failure(), Decision(course=Course.STOP, reason="r", status=93)), None)
    assert (keeps.status(1), keeps.status(0)) == (93, 0)


def test_a_node_that_comes_later_knows_what_was(make):
    old, _ = make()
    for step in (10, 20):
        old.take(Past(failure(step=step, trouble=trouble()), Decision(
            course=Course.RESTART, reason="r", adjustments=Adjustments(micro_batches=2 * step))), None)  # fmt: skip
    new, folder = make()
    new.take_over(old.handover())
    assert [each.failure.scene.step for each in new.past] == [10, 20]
    assert adjustments.read(folder.path / recovery.ADJUSTMENTS).micro_batches == 40
    new.take(Past(failure(step=30), Decision(course=Course.RESTART, reason="r")), None)
    new.take_over(old.handover())  # which knows less by now
    assert [each.failure.scene.step for each in new.past] == [10, 20, 30]
    assert json.loads(old.handover())


def test_a_full_disk_does_not_stop_the_job(make, capsys):
    keeps, folder = make()
    folder.write = lambda *_: (_ for _ in ()).throw(HostUnfit("x"))
    keeps.take(
        Past(failure(), Decision(course=Course.RESTART, reason="r", adjustments=Adjustments(micro_batches=2))), None
    )
    assert "cannot be told what to do differently" in capsys.readouterr().out


def test_a_bug_of_the_policy_neither_ends_a_job_nor_restarts_it_for_ever(make, monkeypatch, capsys):
    monkeypatch.setattr(recovery.policy, "decide", lambda *_: 1 / 0)
    keeps, _ = make()
    courses = [keeps.decide(None, {}, number, Look({0: 1})).decision.course for number in range(5)]
    assert courses == [Course.RESTART] * 3 + [Course.STOP] * 2
    assert "this is a bug of holdfast's policy" in capsys.readouterr().out

"""State of a node across restarts: adjustments, backoff, gate, export to new nodes."""

import json

import pytest

from holdfast.causes.gpu.gpu_memory_worn import GPU_MEMORY_WORN
from holdfast.core import adjustments, ledger, trace_file
from holdfast.core.adjustments import Adjustments
from holdfast.core.errors import HostUnfit
from holdfast.core.failures import JobState, PastFailure, RecoveryAction, RecoveryDecision
from holdfast.core.findings import Verdict, make_finding
from holdfast.core.rank_table import StepProblem
from holdfast.launcher import recovery
from holdfast.launcher.elastic.generation import NodeStatus
from holdfast.launcher.host_gate import GateResult
from holdfast.launcher.policy import RecoveryOptions
from holdfast.launcher.recovery import Recovery
from holdfast.watcher.agent_messages import VerdictReport
from holdfast.watcher.run_folder import RunFolder
from tests.unit.launcher.policy.failures import failure, trouble


class ExcludingGate:
    """A gate that excludes the host."""

    begun = 0

    def begin(self):
        self.begun += 1

    def check(self):
        return GateResult(
            (make_finding(GPU_MEMORY_WORN, "GPU 3 could not replace a bad row of its memory"),),
            0.1,
        )


@pytest.fixture
def make(tmp_path):
    def make_recovery(gate=None, options=RecoveryOptions(max_restarts=9)):  # noqa: B008 - frozen
        (tmp_path / "shm").mkdir(exist_ok=True)
        folder = RunFolder(tmp_path / "runs", workers=1, records=64, shm=tmp_path / "shm")
        return Recovery(folder, options, print, gate), folder

    return make_recovery


NAN = VerdictReport(
    generation=0,
    hang=False,
    verdict=Verdict(question="?"),
    job=JobState(step=9, trouble=StepProblem(what="nan", step=9, first=9, last=9, time=5.0)),
)


def test_adjustments_are_written_for_the_workers(make):
    node, folder = make()
    assert node.variables() == {}
    entry = node.decide(NAN, 0, NodeStatus({0: 1}))
    node.carry_out(entry, None)
    path = folder.path / recovery.ADJUSTMENTS
    assert node.variables() == {"HOLDFAST_ADJUSTMENTS": str(path.absolute())}
    assert adjustments.read_adjustments(path).resume_before == 8
    assert (folder.traces / trace_file.TEARDOWN).exists()
    assert ledger.read_ledger(folder.path)[-1].decision == entry.decision


def test_the_backoff_is_waited_once_before_the_start(make, monkeypatch):
    waited = []
    monkeypatch.setattr(recovery.time, "sleep", waited.append)
    node, _ = make()
    node.prepare()
    node.carry_out(
        PastFailure(
            failure(), RecoveryDecision(action=RecoveryAction.RESTART, reason="r", delay_s=4.0)
        ),
        None,
    )
    node.prepare()
    node.prepare()
    assert waited == [4.0]


def test_an_excluded_host_is_recorded_and_raises(make):
    gate = ExcludingGate()
    node, folder = make(gate)
    with pytest.raises(
        HostUnfit,
        match=r"is excluded from the job: GPU 3 could not replace .*\(GPU009 gpu-mem",
    ):
        node.prepare()
    assert ledger.read_ledger(folder.path)[-1].event is ledger.LedgerEvent.REFUSED
    assert node.status(3) == 1
    node.carry_out(
        PastFailure(failure(), RecoveryDecision(action=RecoveryAction.RESTART, reason="r")), None
    )
    assert gate.begun == 1  # while workers are being terminated


def test_the_job_exits_with_the_status_of_the_last_decision(make):
    node, _ = make()
    assert node.status(1) == 1
    node.carry_out(
        PastFailure(failure(), RecoveryDecision(action=RecoveryAction.STOP, reason="r", status=93)),
        None,
    )
    assert (node.status(1), node.status(0)) == (93, 0)


def test_a_node_that_joins_later_adopts_the_failures(make):
    old, _ = make()
    for step in (10, 20):
        old.carry_out(
            PastFailure(
                failure(step=step, trouble=trouble()),
                RecoveryDecision(
                    action=RecoveryAction.RESTART,
                    reason="r",
                    adjustments=Adjustments(micro_batches=2 * step),
                ),
            ),
            None,
        )
    new, folder = make()
    new.import_state(old.export_state())
    assert [each.failure.job_state.step for each in new.past] == [10, 20]
    assert adjustments.read_adjustments(folder.path / recovery.ADJUSTMENTS).micro_batches == 40
    new.carry_out(
        PastFailure(failure(step=30), RecoveryDecision(action=RecoveryAction.RESTART, reason="r")),
        None,
    )
    new.import_state(old.export_state())  # which has recorded fewer failures now
    assert [each.failure.job_state.step for each in new.past] == [10, 20, 30]
    assert json.loads(old.export_state())


def test_a_write_error_does_not_stop_the_job(make, capsys):
    node, folder = make()
    folder.write = lambda *_: (_ for _ in ()).throw(HostUnfit("x"))
    node.carry_out(
        PastFailure(
            failure(),
            RecoveryDecision(
                action=RecoveryAction.RESTART, reason="r", adjustments=Adjustments(micro_batches=2)
            ),
        ),
        None,
    )
    assert "cannot write the adjustments of the next start" in capsys.readouterr().out


def test_if_the_policy_raises_restarts_are_still_bounded(make, monkeypatch, capsys):
    monkeypatch.setattr(recovery.policy, "decide", lambda *_: 1 / 0)
    node, _ = make()
    actions = [node.decide(None, number, NodeStatus({0: 1})).decision.action for number in range(5)]
    assert actions == [RecoveryAction.RESTART] * 3 + [RecoveryAction.STOP] * 2
    assert "bug in holdfast's recovery policy" in capsys.readouterr().out

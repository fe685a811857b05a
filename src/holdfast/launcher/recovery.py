"""State of a node across restarts: ledger, adjustments, backoff and health gate before a start.

:class:`Recovery` connects the agent, which manages processes, with the pure policy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.core import adjustments, trace_file
from holdfast.core.adjustments import Adjustments
from holdfast.core.errors import HoldfastError, HostUnfit
from holdfast.core.failures import JobState, PastFailure, RecoveryAction, RecoveryDecision
from holdfast.core.ledger import Ledger, LedgerEvent, LedgerRecord
from holdfast.core.text import pluralize
from holdfast.launcher import past_runs, policy
from holdfast.launcher.elastic.generation import Generation, NodeStatus
from holdfast.launcher.host_gate import HostGate
from holdfast.launcher.policy import OnHang, RecoveryOptions
from holdfast.watcher.agent_messages import VerdictReport
from holdfast.watcher.run_folder import RunFolder

ADJUSTMENTS = "adjustments.json"
#: Restarts allowed if the policy itself fails.
RESTARTS_WITHOUT_POLICY = 3
#: Maximum failures sent to a node that joins later.
MAX_EXPORTED = 64


class RunObserver(Protocol):
    """Observes the records of a run, on the node that leads the job. No call may block."""

    @property
    def processes(self) -> frozenset[int]:
        """Its running processes, which do not end with the workers."""

    def changed(self, folder: Path) -> None:
        """Note that the ledger in the run folder has a new line."""

    def close(self) -> None:
        """Finish what is pending, within seconds, at the end of the run."""


class Recovery:
    """Recovery state of one node.

    ``notify`` prints a message; ``gate`` is None if disabled. ``history`` is a folder that outlives
    the run.
    """

    def __init__(
        self,
        folder: RunFolder,
        options: RecoveryOptions,
        notify: Callable[[str], None],
        gate: HostGate | None = None,
        history: Path | None = None,
        observer: RunObserver | None = None,
    ) -> None:
        self.options = options
        self._folder = folder
        self._notify = notify
        self._gate = gate
        self._host = os.uname().nodename
        self._history = history
        self._ledger = Ledger(
            folder.path, history and history / f"{self._host.replace('/', '_')}.jsonl"
        )
        self._received: tuple[PastFailure, ...] = ()
        self._adjustments = adjustments.NO_ADJUSTMENTS
        self._delay_s = 0.0
        self._status: int | None = None
        self._begun = time.time()
        self._job = folder.name
        self._observer, self._leads = observer, False
        self._started = False

    @property
    def past(self) -> tuple[PastFailure, ...]:
        """All failures of the job so far: received ones, then those of this node."""
        return (*self._received, *self._ledger.past)

    def begin(self, text: str, *, same: bool = False) -> None:
        """Load earlier runs (``same``: only those of ``text``) and write the first ledger line.

        Raises:
            InvalidValue: the history cannot be read.
        """
        if self._history is not None:
            earlier = past_runs.read_unfinished(self._history, text if same else None)
            self._received = past_runs.earlier_failures(earlier)
            self._adjust(past_runs.next_adjustments(earlier))
            if self._received:
                failures = pluralize(len(self._received), "failure")
                self._notify(f"{failures} of earlier runs of this job in {self._history}")
        self._record(LedgerEvent.BEGUN, at=self._begun, text=text)

    # Before workers start

    def prepare(self) -> None:
        """Wait for the backoff and run the health gate.

        Raises:
            HostUnfit: the gate excludes this host.
        """
        delay_s, self._delay_s = self._delay_s, 0.0
        if delay_s:
            time.sleep(delay_s)
        if self._gate is None:
            return
        result = self._gate.check()
        if not result.refused:
            return
        finding = result.refused[0]
        self._record(LedgerEvent.REFUSED, findings=result.refused, text=finding.message)
        self._status = HostUnfit.exit_status
        raise HostUnfit(self._host, why=f"{finding.message} ({finding.code} {finding.cause})")

    def variables(self) -> dict[str, str]:
        """Return the variables that point workers to the adjustments file."""
        if self._adjustments == adjustments.NO_ADJUSTMENTS:
            return {}
        return {"HOLDFAST_ADJUSTMENTS": str((self._folder.path / ADJUSTMENTS).absolute())}

    def workers_started(self, generation: Generation) -> None:
        """Record that workers started."""
        self._leads, self._started = generation.leader, True
        (self._folder.traces / trace_file.TEARDOWN).unlink(missing_ok=True)
        changed = self._adjustments if self._adjustments != adjustments.NO_ADJUSTMENTS else None
        self._record(
            LedgerEvent.STARTED,
            job=self._job,
            generation=generation.number,
            nodes=generation.nodes,
            world_size=generation.world_size,
            ranks=tuple(worker.rank for worker in generation.workers),
            adjustments=changed,
        )

    # After a failure

    def decide(
        self, report: VerdictReport | None, generation: int, status: NodeStatus
    ) -> PastFailure:
        """Build the failure from the watcher's report and decide on the action."""
        job = report.job if report else JobState()
        failure = policy.build_failure(
            report.verdict if report else None,
            at=time.time(),
            generation=generation,
            hang=report is not None and report.hang,
            dead=tuple(sorted(rank for rank, code in status.exit_codes.items() if code)),
            job_state=msgspec.structs.replace(
                job, waiting=status.waiting_nodes, in_place=status.replaceable
            ),
        )
        try:
            return PastFailure(failure, policy.decide(failure, self.options, self.past))
        except Exception as error:  # noqa: BLE001 - a policy bug must not end the job
            what = f"{type(error).__name__}: {error}"
            self._notify(f"bug in holdfast's recovery policy, please report it: {what}")
            return PastFailure(failure, self._decide_without_policy(generation))

    def _decide_without_policy(self, generation: int) -> RecoveryDecision:
        limit = min(self.options.max_restarts, RESTARTS_WITHOUT_POLICY)
        if generation >= limit or self.options.on_hang is not OnHang.RESTART:
            return RecoveryDecision(
                action=RecoveryAction.STOP, reason="stop: the recovery policy failed"
            )
        return RecoveryDecision(
            action=RecoveryAction.RESTART,
            reason=f"restart {generation + 1} without a policy decision",
            adjustments=self._adjustments,
        )

    def carry_out(self, entry: PastFailure, folder: str | None) -> None:
        """Record the decision and prepare for it; a decision to only report is just recorded."""
        failure, decision = entry.failure, entry.decision
        self._record(
            LedgerEvent.FAILED,
            at=failure.at,
            generation=failure.generation,
            failure=failure,
            decision=decision,
            folder=folder,
        )
        if decision.action is RecoveryAction.REPORT:
            return
        self._status, self._delay_s = decision.status, decision.delay_s
        if decision.action is not RecoveryAction.REPLACE:
            self._mark_teardown()
        if decision.restarts:
            self._adjust(decision.adjustments)
            if self._gate is not None:
                self._gate.begin()

    def _adjust(self, wanted: Adjustments) -> None:
        """Write the adjustments of the next start; a write error loses the remedy, not the job."""
        self._adjustments = wanted
        if wanted == adjustments.NO_ADJUSTMENTS:
            return
        try:
            self._folder.write(ADJUSTMENTS, adjustments.encode_adjustments(wanted))
        except HoldfastError as error:
            self._notify(f"cannot write the adjustments of the next start: {error}")

    def _mark_teardown(self) -> None:
        """Mark the next SIGTERM as ours, so that ranks do not treat it as a preemption warning."""
        try:
            (self._folder.traces / trace_file.TEARDOWN).touch()
        except OSError:
            return  # ranks then save once more within their grace period

    @property
    def helpers(self) -> frozenset[int]:
        """The processes of the observer."""
        return self._observer.processes if self._observer is not None else frozenset()

    # For nodes that join later

    def export_state(self) -> str:
        """Return the recorded failures for a node that joins later."""
        kept = [
            PastFailure(msgspec.structs.replace(each.failure, evidence=()), each.decision)
            for each in self.past
        ]
        return msgspec.json.encode((kept[-MAX_EXPORTED:], self._adjustments, self._job)).decode()

    def import_state(self, state: str) -> None:
        """Adopt the name of the job, and the failures of other nodes if they recorded more."""
        received, wanted, job = msgspec.json.decode(
            state, type=tuple[tuple[PastFailure, ...], Adjustments, str]
        )
        if not self._started:
            self._job = job
        if len(received) <= len(self.past):
            return
        self._received = received[: len(received) - len(self._ledger.past)]
        self._adjust(wanted)

    # The end

    def status(self, status: int) -> int:
        """Return the exit status of a job that ended with torchrun's ``status``."""
        return self._status if status != 0 and self._status is not None else status

    def close(self, status: int, text: str) -> None:
        """Write the last line of the ledger."""
        self._record(LedgerEvent.ENDED, status=status, text=text)

    def _record(self, event: LedgerEvent, *, at: float | None = None, **fields: Any) -> None:
        before = self._ledger.write_error
        at = time.time() if at is None else at
        self._ledger.add(LedgerRecord(event=event, at=at, host=self._host, **fields))
        if self._ledger.write_error and not before:
            self._notify(
                f"cannot write the ledger, continuing in memory: {self._ledger.write_error}"
            )
        if self._leads and self._observer is not None:
            self._observer.changed(self._folder.path)

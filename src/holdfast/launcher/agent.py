"""The hooks of one node: they inform the watcher of events, and act on its verdicts.

``launcher/elastic/agent.py`` calls :class:`NodeAgent`. No hook blocks: workers need monitoring.
"""

from __future__ import annotations

import io
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core import settings
from holdfast.core.errors import MissingFile
from holdfast.core.failures import PastFailure, RecoveryAction, RecoveryDecision
from holdfast.core.findings import Verdict
from holdfast.core.text import pluralize
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system import memory
from holdfast.host.environment import environment_facts
from holdfast.host.host_summary import host_facts
from holdfast.host.versions import installed_versions
from holdfast.launcher import messages
from holdfast.launcher.alerts import NO_ALERTS, Alerts, failure_alert, warning_alert
from holdfast.launcher.dump_locations import DumpLocations
from holdfast.launcher.elastic.generation import (
    Generation,
    GenerationEnd,
    NodeStatus,
    Order,
    OrderAction,
)
from holdfast.launcher.messages import LaunchPlan, print_message
from holdfast.launcher.preemption import Preemption, read_preemption
from holdfast.launcher.recovery import Recovery
from holdfast.launcher.stack_relay import StackRelay
from holdfast.launcher.watcher_channel import WatcherChannel
from holdfast.report import json as json_report
from holdfast.report.terminal import render_verdict
from holdfast.watcher import history_facts
from holdfast.watcher.agent_messages import (
    HangSuspected,
    JudgeNow,
    LeaderContact,
    NodeSummary,
    PeerSummaries,
    ProgressNote,
    RankWarning,
    Reply,
    StartWatching,
    StopWatching,
    SuspicionWithdrawn,
    VerdictReport,
    WatchedWorker,
    WorkerExits,
)
from holdfast.watcher.rules.section_limits import LIMITS_FILE
from holdfast.watcher.run_folder import RunFolder

QUESTION = "What went wrong with this job?"
#: Importing rich takes 0.1 s: before a verdict needs it, and this many seconds after the start of
#: the workers, which would compete with it for processors.
PRELOAD_AFTER_S = 3.0
#: Maximum wait for the verdict of a watcher that is alive (a busy host needs more than 1 s), and on
#: a non-leader node for an order.
VERDICT_TIMEOUT_S = 8.0
LEADER_TIMEOUT_S = 12.0
#: With several nodes: time for one node's observation of a failure to reach the leader's watcher.
SETTLE_S = 1.5
#: Time between SIGTERM and SIGKILL after a hang, for workers that are not stuck themselves.
HANG_GRACE_S = 3.0
#: The same after a crash, before a restart: no collective can complete. Otherwise torch's 30 s.
CRASH_GRACE_S = 5.0
#: Watchers that may exit before the job continues without one.
MAX_WATCHERS = 4
RELAY_EVERY_S = 1.0
#: File in the run folder from which each rank copies its host's facts into its trace file.
FACTS = "facts.json"


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``incidents`` in the JSON report."""

    generation: int
    verdict: Verdict
    decision: str
    html: str | None = None
    folder: str | None = None
    detected_s: float | None = None


class OrderPayload(msgspec.Struct, frozen=True):
    """What an order carries to all nodes: the incident and the policy's decision."""

    incident: Incident
    entry: PastFailure


class NodeAgent:
    """The hooks of one node.

    The leader requests a verdict from its watcher; other nodes call the leader.
    """

    def __init__(
        self,
        folder: RunFolder,
        plan: LaunchPlan,
        recovery: Recovery,
        watcher: WatcherChannel,
        alerts: Alerts = NO_ALERTS,
    ) -> None:
        self._folder = folder
        self._alerts = alerts
        self._plan = plan
        self._recovery = recovery
        self.prepare, self.notify = recovery.prepare, print_message
        self.export_state, self.import_state = recovery.export_state, recovery.import_state
        self._restarts = 0
        self._watcher = watcher
        self._watchers_left = MAX_WATCHERS
        self._incidents: list[Incident] = []
        self._generation: Generation | None = None
        self._state = _GenerationState()
        self._preemption: Preemption | None = None
        self._dumps = DumpLocations(folder.path / "flight-recorder", plan.environment)
        self._history = history_facts.history_folder(folder.path.parent)
        self._agent = secrets.token_hex(4)
        self._write_run_file()

    def _write_run_file(self) -> None:
        preset = self._plan.preset
        facts = {
            "schema": "holdfast/1",
            "run": self._folder.name,
            "begun": time.time(),
            "workers": self._plan.workers,
            "recorder": self._plan.recorder,
            "native": self._plan.native,
            "inject": self._plan.inject,
            "preset": preset.name or None,
            "settings": preset.readings,
            "traces": str(self._folder.traces),
            "watcher": self._watcher.pid,
        }
        seen = (*installed_versions(), *host_facts(), *environment_facts(self._plan.environment))
        self._folder.write(FACTS, msgspec.json.encode(seen))
        self._folder.write("run.json", msgspec.json.format(msgspec.json.encode(facts)))

    # The hooks

    def worker_environment(self, rank: int, generation: int) -> Mapping[str, str]:
        """Return the environment variables of worker ``rank``."""
        limit_s = self._plan.group_timeout_s
        dumps = self._dumps.variables(rank, generation) if self._plan.recorder != "off" else {}
        return {
            **dumps,
            **self._plan.gaps,
            # The former name too, for scripts that read it.
            **dict.fromkeys(
                settings.all_names("HOLDFAST_TRACE"), str(self._folder.trace_file(rank))
            ),
            "HOLDFAST_RECORDER": self._plan.recorder,
            "HOLDFAST_NATIVE": self._plan.native,
            "HOLDFAST_INJECT": self._plan.inject,
            "HOLDFAST_WATCHER_PID": str(self._watcher.pid),
            **settings.missing_defaults({"HOLDFAST_HISTORY": str(self._history)}),
            "HOLDFAST_FACTS": str(self._folder.path.absolute() / FACTS),
            **self._recovery.variables(),
            **({} if limit_s is None else {"HOLDFAST_GROUP_TIMEOUT_S": f"{limit_s:g}"}),
        }

    def workers_started(self, generation: Generation) -> None:
        """Send the generation to the watcher and print the start message."""
        self._generation, self._state = generation, _GenerationState()
        self._restarts = generation.number
        self._recovery.workers_started(generation)
        for _ in self._watcher.replies():
            pass  # of the previous generation
        self._state.start = StartWatching(
            generation=generation.number,
            run_dir=str(self._folder.path.absolute()),
            node=generation.node,
            nodes=generation.nodes,
            leader=generation.leader,
            world_size=generation.world_size,
            workers=tuple(
                WatchedWorker(
                    worker.rank,
                    worker.pid,
                    str(self._folder.trace_file(worker.rank)),
                    self._dumps.location(worker.rank, generation.number),
                )
                for worker in generation.workers
            ),
            agent=self._agent,
            may_restart=generation.number < self._recovery.options.max_restarts,
            exclude_stragglers=self._recovery.options.exclude_stragglers,
            limits_file=str(self._history / LIMITS_FILE),
            address=generation.address,
            port=generation.port,
            leader_workers=generation.leader_workers,
            job=f"{self._plan.script}, {generation.world_size} ranks",
            launch_options=self._plan.launch_options,
            script=self._plan.command,
        )
        self._watcher.send(self._state.start)
        print_message(messages.start_message(generation, self._plan, self._folder.path))
        if generation.number == 0:
            preload = threading.Timer(
                PRELOAD_AFTER_S,
                lambda: render_verdict(NO_VERDICT, file=io.StringIO(), action="none"),
            )
            preload.daemon = True
            preload.start()

    def tick(self, status: NodeStatus) -> Order | None:
        """Exchange messages with the watcher; act on a verdict or a failure of workers."""
        current, state = self._generation, self._state
        if current is None:
            return None
        state.status = status
        if status.exit_codes != state.codes:
            state.codes = dict(status.exit_codes)
            self._watcher.send(WorkerExits(codes=state.codes))
        self._relay(current, state)
        state.stacks.receive(current, self._watcher)
        for reply in self._watcher.replies():
            order = self._handle(reply, current, state)
            if order is not None:
                return order
        self._restart_watcher(state)
        return self._check_failure(current, state)

    def order_agreed(self, order: Order) -> None:
        """Record the order; the node that proposed it has already printed the verdict."""
        message = msgspec.json.decode(order.payload, type=OrderPayload)
        incident = message.incident
        self._incidents.append(incident)
        self._recovery.carry_out(message.entry, incident.folder)
        if order.payload != self._state.payload:
            what = incident.verdict.root.message if incident.verdict.root else "workers failed"
            print_message(f"another node decided: {what}; {order.reason}")

    def workers_ended(self, how: GenerationEnd) -> None:
        """Keep or remove the trace files, depending on how the generation ended."""
        self._watcher.send(StopWatching())
        suspected, self._state.suspected = self._state.suspected, None
        workers = self._generation.workers if self._generation else ()
        self._preemption = read_preemption(self._folder.trace_file(each.rank) for each in workers)
        if how is GenerationEnd.CLEAN and suspected is not None:
            print_message("suspicion withdrawn: the job ended with status 0")
        if how is GenerationEnd.INTERRUPTED and suspected is not None and self._generation:
            number, decision = self._generation.number, str(RecoveryAction.REPORT)
            self._incidents.append(
                Incident(generation=number, verdict=suspected, decision=decision)
            )
        if how is GenerationEnd.FAILED:
            folder = self._state.folder or self._folder.new_incident()
            error = self._folder.keep_traces(folder / "traces")
        elif how is GenerationEnd.INTERRUPTED:
            error = self._folder.keep_traces(self._folder.path / "interrupted")
        else:
            error = ""
            self._folder.remove_traces()
        if error:
            print_message(f"cannot keep the trace files: {error}")
        self._generation = None

    def helpers(self) -> frozenset[int]:
        """Return the watcher's process, which is replaced if it exits, and the observer's."""
        return self._recovery.helpers | {self._watcher.pid}

    def available_memory(self) -> tuple[int, int] | None:
        """Return available and total memory of this host in bytes, for standby workers."""
        result = memory.inspect(CheckContext())
        if result.available_bytes is None or result.limit_bytes is None:
            return None
        return result.available_bytes, result.limit_bytes

    def abort(self) -> None:
        """Kill the watcher and remove the trace files immediately."""
        self._watcher.kill()
        self._dumps.close()
        self._folder.close()

    # Between watcher and nodes

    def _relay(self, current: Generation, state: _GenerationState) -> None:
        if current.nodes == 1 or time.monotonic() < state.relayed_at + RELAY_EVERY_S:
            return
        state.relayed_at = time.monotonic()
        if current.leader:
            self._forward_summaries(current)
        else:
            self._watcher.send(LeaderContact(silent_s=current.board.leader_silent_s))

    def _forward_summaries(self, current: Generation) -> None:
        summaries = {node: text for node, text in current.board.read("summary").items() if text}
        if summaries:
            self._watcher.send(PeerSummaries(summaries=summaries))

    def _handle(self, reply: Reply, current: Generation, state: _GenerationState) -> Order | None:
        match reply:
            case ProgressNote(text=text):
                print_message(text)
            case HangSuspected(text=text, verdict=verdict):
                state.suspected = verdict
                print_message(text)
            case SuspicionWithdrawn(text=text):
                state.suspected = None
                print_message(text)
            case RankWarning(rank=rank, about=about, text=text):
                self._alerts.send(warning_alert(rank, about, text))
            case NodeSummary(summary=summary):
                current.board.post("summary", summary)
            case VerdictReport(generation=current.number) if not _is_over(
                reply, current, state.status
            ):
                return self._act(reply, current, state)
            case _:
                state.stacks.post(reply, current.board)
        return None

    def _restart_watcher(self, state: _GenerationState) -> None:
        """Replace a watcher that exited, at most MAX_WATCHERS times."""
        if self._watcher.alive or self._watchers_left == 0:
            return
        self._watchers_left -= 1
        status, where = self._watcher.status, self._folder.path / "watcher.log"
        if self._watchers_left == 0:
            print_message(
                f"the watcher exited again (status {status}, see {where}); "
                "the job continues without one"
            )
            return
        print_message(f"the watcher exited (status {status}, see {where}); starting another one")
        self._watcher = self._watcher.restart()
        if state.start is not None:
            self._watcher.send(state.start)
        if state.codes:
            self._watcher.send(WorkerExits(codes=state.codes))
        state.asked = False

    def _check_failure(self, current: Generation, state: _GenerationState) -> Order | None:
        """After a failure of workers here or on another node: request a verdict, with a timeout."""
        failed = any(state.codes.values())
        called = current.leader and bool(current.board.read("call"))
        if not failed and not called:
            return None
        now = time.monotonic()
        state.failed_at = state.failed_at or now
        if not state.asked and (current.nodes == 1 or called or now > state.failed_at + SETTLE_S):
            state.asked = True
            if current.leader:
                self._forward_summaries(current)
                self._watcher.send(JudgeNow())
            else:
                current.board.post("call", "1")
        gone = (state.asked and current.board.lost) or now > state.failed_at + LEADER_TIMEOUT_S
        if gone and not current.leader and not state.alone:
            state.alone, state.failed_at = True, now  # this node decides
            self._watcher.send(JudgeNow())
        limit_s = VERDICT_TIMEOUT_S if current.leader or state.alone else LEADER_TIMEOUT_S
        if (current.leader and not self._watcher.alive) or now > state.failed_at + limit_s:
            return self._act(None, current, state)
        return None

    # Acting

    def _act(
        self, report: VerdictReport | None, current: Generation, state: _GenerationState
    ) -> Order | None:
        """Decide on the action; ``report`` is None if the watcher returned no verdict in time."""
        verdict = report.verdict if report else None
        hang = report is not None and report.hang
        state.suspected = None
        entry = self._recovery.decide(report, current.number, state.status)
        decision = entry.decision
        incident = Incident(
            generation=current.number,
            verdict=verdict or NO_VERDICT,
            decision=str(decision.action),
            html=report.html if report else None,
            folder=report.folder if report else None,
            detected_s=report.detected_s if report else None,
        )
        if report is None or report.job.preempted is None:  # else the last line states the step
            self._print_verdict(incident, decision, hang=hang)
        self._alerts.send(
            failure_alert(
                verdict,
                messages.describe_exits(state.codes),
                decision.reason,
                stops=decision.action is RecoveryAction.STOP,
                page=incident.html,
            )
        )
        if decision.action is RecoveryAction.REPORT:
            self._incidents.append(incident)
            self._recovery.carry_out(entry, incident.folder)
            return None
        state.folder = Path(incident.folder) if incident.folder else None
        state.payload = msgspec.json.encode(OrderPayload(incident, entry)).decode()
        return Order(
            action=OrderAction(decision.action.value),
            reason=decision.reason,
            payload=state.payload,
            stuck=(*report.stuck, *report.stopped) if report else (),
            grace_s=HANG_GRACE_S if hang else CRASH_GRACE_S if decision.restarts else None,
            excluded=decision.nodes,
            ranks=decision.ranks,
        )

    def _print_verdict(self, incident: Incident, decision: RecoveryDecision, *, hang: bool) -> None:
        verdict = incident.verdict
        if verdict.root is None and not verdict.suspects:
            why = verdict.unseen[0] if verdict.unseen else "no cause was identified"
            print_message(
                f"{messages.describe_exits(self._state.codes)}; {why}; {decision.reason}"
                + (f"; {incident.html}" if incident.html else "")
            )
            return
        found_s = incident.detected_s if hang else None
        render_verdict(verdict, html=incident.html, action=decision.reason, elapsed_s=found_s)

    # The end

    def close(self, status: int) -> None:
        """End the watcher, remove trace files, write the JSON report, print how the job ended."""
        self._watcher.close()
        self._dumps.close()
        self._folder.close()
        self._keep_history()
        if self._preemption is not None and status == self._preemption.status:
            print_message(str(self._preemption))
        elif status != 0 and self._incidents:
            report = self._incidents[-1].html  # the verdict was printed when it was reached
            print_message("the job failed" + (f"; report: {report}" if report else ""))
        self._recovery.close(
            status, "" if status == 0 else f"after {pluralize(len(self._incidents), 'incident')}"
        )
        if self._plan.json_report is not None:
            try:
                json_report.write_json(self._plan.json_report, self._report(status))
            except MissingFile as error:  # the folder was removed, or the disk is full
                print_message(f"warning: no JSON report: {error}")
        self._alerts.ended(
            status, sum(each.decision != RecoveryAction.REPORT for each in self._incidents)
        )

    def _keep_history(self) -> None:
        history = history_facts.read_histories(self._history)
        with suppress(MissingFile):  # a full disk
            if history.troubles:
                self._folder.write(history_facts.FILE, history_facts.encode_history(history))

    def _report(self, status: int) -> dict[str, Any]:
        verdict = self._incidents[-1].verdict if self._incidents else Verdict(question=QUESTION)
        findings = (verdict.root, *verdict.consequences) if verdict.root is not None else ()
        return json_report.envelope(
            "run",
            findings,
            verdict,
            incidents=self._incidents,
            status=status,
            restarts=self._restarts,
            run_dir=str(self._folder.path),
        )


def _is_over(report: VerdictReport, current: Generation, status: NodeStatus) -> bool:
    """Return whether all workers ended before the verdict about the hang."""
    return report.hang and current.nodes == 1 and len(status.exit_codes) == len(current.workers)


class _GenerationState:
    """State of this node for the current generation."""

    def __init__(self) -> None:
        self.status = NodeStatus({})
        self.codes: dict[int, int] = {}
        self.failed_at = self.relayed_at = 0.0
        self.asked = self.alone = False
        self.stacks = StackRelay()
        #: The verdict about a suspected hang that was neither withdrawn nor acted on.
        self.suspected: Verdict | None = None
        self.start: StartWatching | None = None
        self.folder: Path | None = None
        self.payload = ""


#: Placeholder if the watcher returned no verdict.
NO_VERDICT = Verdict(question=QUESTION, unseen=("the watcher returned no verdict in time",))

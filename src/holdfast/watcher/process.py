"""The watcher process: runs beside the agent of each node, observes its ranks and judges stalls.

``python -m holdfast.watcher`` reads requests from the agent on stdin and writes replies to
stdout (:mod:`holdfast.watcher.agent_messages`). It reads the trace files twice a second, which
costs the job nothing, and samples stacks only while the whole job is silent. The leader's watcher
(on the node of the rendezvous) receives the summaries of the others, judges and writes the
incident.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import DecodeError
from msgspec.structs import replace

from holdfast.core import settings
from holdfast.core.atomic_files import write_atomic
from holdfast.core.findings import Finding, Verdict
from holdfast.core.live_state import LiveState
from holdfast.core.rank_table import ProcessState
from holdfast.core.redaction.redact_command import redact_arguments
from holdfast.host.checks import CheckContext
from holdfast.watcher import agent_messages, incidents
from holdfast.watcher.agent_messages import (
    HangSuspected,
    JudgeNow,
    LeaderContact,
    NodeSummary,
    PeerSummaries,
    ProgressNote,
    RankWarning,
    Reply,
    Request,
    StackAnswer,
    StackQuestion,
    StartWatching,
    StopWatching,
    SuspicionWithdrawn,
    UndecodableMessage,
    VerdictReport,
    WorkerExits,
)
from holdfast.watcher.host_health import HostHealthMonitor
from holdfast.watcher.job_state import build_job_state
from holdfast.watcher.job_summary import (
    JobSummary,
    combine_summaries,
    decode_summary,
    encode_summary,
    mark_node,
    unreachable_node,
)
from holdfast.watcher.limit_learning import LimitLearner
from holdfast.watcher.live_port import LivePort
from holdfast.watcher.live_writer import LiveWriter
from holdfast.watcher.node import NodeSensor, WorkerProcess
from holdfast.watcher.orphans import WorkerTree, end_orphans
from holdfast.watcher.rules.dead_ranks import have_only_timed_out
from holdfast.watcher.rules.placeholders import fill_verdict
from holdfast.watcher.rules.stall import NODE_SILENT_S, StallLimits
from holdfast.watcher.run_folder import COMMAND, RunCommand
from holdfast.watcher.stall_detector import DetectorOutcome, StallDetector
from holdfast.watcher.straggler_watch import ExtraWorkWatch, SlowLinkWatch, StragglerWatch

TICK_S = 0.5
#: Tick between the two close observations of a silent job.
SUSPICION_TICK_S = 0.1
#: With this many other nodes, the leader judges when their summaries arrive, not at every tick.
MANY_PEERS = 64
#: A node whose summary is older counts as unreachable.
MAX_SUMMARY_AGE_S = 5.0
#: The same after ranks died: the newest summaries, sent every 0.5 s, precede JudgeNow.
MAX_SUMMARY_AGE_AFTER_EXIT_S = 2.0


class NodeWatcher:
    """State of one watcher: its node, the summaries of the other nodes, and the stall detector."""

    def __init__(
        self,
        learner: LimitLearner,
        health: HostHealthMonitor,
        live: LiveWriter,
        window_s: float,
        port: LivePort | None = None,
    ) -> None:
        self._learner = learner
        self._live, self._port = live, port or LivePort(None)
        self._notice = ""
        self._window_s = window_s
        self._stragglers = StragglerWatch(0.0, warns=False)
        self._links, self._extra_work = SlowLinkWatch(0.0), ExtraWorkWatch(0.0)
        self._health = health
        self._job: StartWatching | None = None
        self._node: NodeSensor | None = None
        self._leads = False
        self._workers = WorkerTree(())
        self._peers: dict[int, JobSummary] = {}
        self._reported_at: dict[int, float] = {}  # by the clock of the other node
        self._has_news, self._judged_at = False, 0.0
        self._detector = StallDetector(learner.limits)
        self._finish_incident: Callable[[], None] | None = None

    @property
    def is_suspecting(self) -> bool:
        """Return whether a silent job is being examined."""
        return self._detector.is_suspecting

    def handle(self, request: Request) -> Iterator[Reply]:
        """Carry out a request of the agent and yield the replies."""
        match request:
            case StartWatching():
                self._start(request)
            case WorkerExits(codes=codes) if self._node is not None:
                self._node.set_exit_codes(codes)
            case PeerSummaries(summaries=summaries):
                for node, encoded in summaries.items():
                    self._add_peer(node, encoded)
            case LeaderContact(silent_s=silent_s) if self._job is not None:
                self._set_leader_silence(self._job, silent_s)
            case StackQuestion() if self._node is not None:
                yield self._node.sample_stack(request)
            case StackAnswer():
                self._port.answer(request)
            case StopWatching():
                self._node = None
                self._learner.save()
            case JudgeNow():
                yield self._judge_now()
                self._write_rest_of_incident()

    def _add_peer(self, node: int, encoded: str) -> None:
        """Store the summary of another node, dated by this host's clock: the other may be wrong."""
        try:
            summary = decode_summary(encoded)
        except (ValueError, DecodeError) as error:
            sys.stderr.write(f"holdfast watcher: ignored the summary of node {node}: {error}\n")
            return
        if self._reported_at.get(node) != summary.time:
            self._reported_at[node] = summary.time
            self._has_news = True
            self._peers[node] = mark_node(replace(summary, time=time.time()))

    def _set_leader_silence(self, job: StartWatching, silent_s: float) -> None:
        """Note that the leader does not answer: this watcher then judges, without its summary."""
        self._leads = silent_s >= NODE_SILENT_S
        self._peers.clear()
        if self._leads:
            ranks = range(job.leader_workers)
            self._peers[0] = unreachable_node(ranks, job.address, job.world_size, silent_s)

    def tick(self) -> Iterator[Reply]:
        """Observe the node once and yield the replies: warnings, a summary, a verdict."""
        node, job = self._node, self._job
        if node is None or job is None:
            return
        self._workers.remember_children(node.children())
        yield from self._port.new_questions()
        for sentence in (*self._health.new_sentences(), *self._port.new_sentences()):
            yield ProgressNote(text=sentence)
        summary = node.observe()
        for rank, about, text in node.new_warnings():
            yield RankWarning(rank=rank, about=about, text=text)
        if job.nodes > 1:
            if time.time() - summary.silent_since > self._learner.limits.stall_s:
                summary = node.observe_closely()
            elif any(state.exit_code for state in summary.ranks):
                summary = node.observe_closely(stacks=False)  # its last call, and whether it failed
            summary = replace(summary, health=self._health.findings, agent=job.agent)
        summary = replace(summary, nodes=(self._health.reading,))
        if job.nodes > 1:
            yield NodeSummary(summary=encode_summary(summary))
        if self._leads and self._is_due():
            yield from self._judge(node, job, summary)

    def _is_due(self) -> bool:
        """Return whether to judge now; with many nodes, only after news of them, or every second.

        Their summaries arrive once per second, and combining 2,048 of them takes 0.05 s.
        """
        now = time.monotonic()
        if (
            len(self._peers) >= MANY_PEERS
            and not self._has_news
            and not self.is_suspecting
            and now < self._judged_at + 1.0
        ):
            return False
        self._has_news, self._judged_at = False, now
        return True

    def _judge(self, node: NodeSensor, job: StartWatching, summary: JobSummary) -> Iterator[Reply]:
        self._detector.limits = self._learner.limits
        whole = self._whole_job(summary)
        self._write_live(job, whole)
        outcome = self._detector.update(whole, node.observe_closely, self._whole_job)
        if job.leader:
            self._learner.observe(outcome.table)
        yield from self._messages(job, outcome)
        if outcome.verdict is not None:
            yield self._report(
                job, outcome.verdict, outcome.table, hang=True, silent_s=outcome.silent_s
            )
            self._write_rest_of_incident()
        silent_s = time.time() - outcome.table.silent_since
        if not job.leader or silent_s > self._learner.limits.stall_s:
            return  # a rank that hangs is not slow
        for watch in (self._links, self._extra_work):
            found = watch.judge(outcome.table)
            if found is not None:
                yield ProgressNote(text=f"{found.message} ({found.code} {found.cause})")
        health = (*self._health.findings, *outcome.table.health)
        slow = self._stragglers.judge(outcome.table, health)
        if slow is not None:
            table = self._whole_job(node.observe_closely(stacks=False))
            yield self._report(job, slow, table, hang=False, silent_s=0.0)
            self._write_rest_of_incident()

    def _write_live(self, job: StartWatching, table: JobSummary) -> None:
        findings: dict[tuple[object, ...], Finding] = {
            (each.cause, each.subject): each for each in (*self._health.findings, *table.health)
        }
        base = LiveState(stall_s=self._learner.limits.stall_s, notice=self._notice)
        self._live.update(job, table, tuple(findings.values()), base)

    def _start(self, job: StartWatching) -> None:
        self._notice = ""
        self._job, self._leads = job, job.leader
        self._peers, self._reported_at = {}, {}
        self._detector = StallDetector(self._learner.limits, may_restart=job.may_restart)
        if job.limits_file:
            self._learner.start(Path(job.limits_file), job.job)
        workers = [
            WorkerProcess(worker.rank, worker.pid, Path(worker.trace), worker.dumps)
            for worker in job.workers
        ]
        self._node = NodeSensor(workers, job.world_size, self._window_s)
        self._stragglers = StragglerWatch(self._window_s, warns=job.exclude_stragglers)
        self._links = SlowLinkWatch(self._window_s)
        self._extra_work = ExtraWorkWatch(self._window_s)
        self._workers = WorkerTree([worker.pid for worker in workers])
        self._health.start()
        if job.leader:
            self._port.start(job.run_dir)
        else:  # another node leads since the restart
            self._port.close()
        with suppress(OSError):  # a full disk must not end the watcher
            write_atomic(Path(job.run_dir, COMMAND), msgspec.json.encode(_redacted_command(job)))

    def end_orphans(self) -> None:
        """End the workers of an agent that died before it sent StopWatching."""
        job = self._job
        if self._node is not None and job is not None:
            sys.stderr.write("holdfast watcher: the agent died; ending its workers\n")
            traces = Path(job.workers[0].trace).parent
            end_orphans(self._workers, traces, Path(job.run_dir), (job.address, job.port))

    def _whole_job(self, own: JobSummary, max_age_s: float = MAX_SUMMARY_AGE_S) -> JobSummary:
        return combine_summaries([own, *self._peers.values()], time.time(), max_age_s)

    def _judge_now(self) -> Reply:
        if self._node is None or self._job is None:
            return ProgressNote(text="no verdict: no worker has been started")
        table = self._whole_job(
            self._node.observe_closely(stacks=False), MAX_SUMMARY_AGE_AFTER_EXIT_S
        )
        if have_only_timed_out(table.ranks):  # for a rank that is still alive
            table = self._whole_job(self._node.observe_closely(), MAX_SUMMARY_AGE_AFTER_EXIT_S)
        silent_s = time.time() - table.silent_since
        verdict = self._detector.final_verdict(table)
        return self._report(self._job, verdict, table, hang=False, silent_s=silent_s)

    def _write_rest_of_incident(self) -> None:
        """Write what the agent does not wait for, such as the page, after the verdict was sent."""
        finish, self._finish_incident = self._finish_incident, None
        if finish is not None:
            finish()

    def _report(
        self,
        job: StartWatching,
        verdict: Verdict,
        table: JobSummary,
        *,
        hang: bool,
        silent_s: float,
    ) -> VerdictReport:
        verdict = self._completed(job, verdict, table)
        folder, page, self._finish_incident = incidents.create_incident(
            Path(job.run_dir) / "incidents", verdict, table, job
        )
        agents = {node: peer.agent for node, peer in self._peers.items()} | {job.node: job.agent}
        return VerdictReport(
            generation=job.generation,
            hang=hang,
            verdict=verdict,
            stuck=incidents.stuck_ranks(verdict, table),
            stopped=tuple(
                state.rank for state in table.ranks if state.life is ProcessState.STOPPED
            ),
            html=str(page),
            folder=str(folder),
            detected_s=round(silent_s, 3),
            job=build_job_state(table, self._node_of_rank(job, table), agents),
        )

    def _completed(self, job: StartWatching, verdict: Verdict, table: JobSummary) -> Verdict:
        """Add the findings about the hosts, and the job's command in the remedies."""
        command = _redacted_command(job)
        verdict = self._health.add_to(verdict, table.health)
        return fill_verdict(verdict, command.launch_options, command.script)

    def _messages(self, job: StartWatching, outcome: DetectorOutcome) -> Iterator[Reply]:
        self._notice = outcome.suspicion or ("" if outcome.withdrawal else self._notice)
        if outcome.note:
            yield ProgressNote(text=outcome.note)
        if outcome.suspicion and outcome.suspected is not None:
            verdict = self._completed(job, outcome.suspected, outcome.table)
            yield HangSuspected(text=outcome.suspicion, verdict=verdict)
        if outcome.withdrawal:
            yield SuspicionWithdrawn(text=outcome.withdrawal)

    def _node_of_rank(self, job: StartWatching, table: JobSummary) -> dict[int, int]:
        peers = {state.rank: node for node, peer in self._peers.items() for state in peer.ranks}
        return {state.rank: peers.get(state.rank, job.node) for state in table.ranks}


def _redacted_command(job: StartWatching) -> RunCommand:
    options, script = map(redact_arguments, (job.launch_options, job.script))
    return RunCommand(launch_options=options, script=script)


def read_requests() -> queue.Queue[Request | None]:
    """Read requests from stdin in a thread; None follows the last one when the agent has exited."""
    requests: queue.Queue[Request | None] = queue.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            try:
                requests.put(agent_messages.decode_request(line))
            except UndecodableMessage as error:
                sys.stderr.write(f"holdfast watcher: {error}\n")
        requests.put(None)

    threading.Thread(target=read, daemon=True).start()
    return requests


def send(reply: Reply) -> None:
    """Write a reply to stdout."""
    sys.stdout.buffer.write(agent_messages.encode_message(reply))
    sys.stdout.buffer.flush()


def configured_limits() -> StallLimits:
    """Return the time limits set in the environment, or the defaults."""
    return StallLimits(
        stall_s=settings.read_seconds("HOLDFAST_STALL_S"),
        first_step_s=settings.read_seconds("HOLDFAST_FIRST_STEP_S"),
        compile_s=settings.read_seconds("HOLDFAST_COMPILE_S"),
        checkpoint_s=settings.read_seconds("HOLDFAST_CHECKPOINT_S"),
        evaluation_s=settings.read_seconds("HOLDFAST_EVALUATION_S"),
        alone_s=settings.read_seconds("HOLDFAST_ALONE_S"),
        grace_s=settings.read_seconds("HOLDFAST_GRACE_S"),
        act_after_s=settings.read_seconds("HOLDFAST_ACT_AFTER"),
    )


def fixed_limits() -> tuple[str, ...]:
    """Return the names of limits set by the user or a preset, which are not learned."""
    environ, names = settings.current_environment(), StallLimits.__dataclass_fields__
    variables = {name: f"HOLDFAST_{name.upper()}" for name in names}
    variables["act_after_s"] = "HOLDFAST_ACT_AFTER"
    return tuple(name for name, variable in variables.items() if environ.get(variable))


def main() -> None:
    """Watch until the agent closes the pipe or dies; then end the workers that it left."""
    # Ctrl-C reaches the whole foreground group, and Slurm's warning all processes of the step; the
    # agent sends a request instead.
    for each in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(each, signal.SIG_IGN)
    health = HostHealthMonitor(
        CheckContext(environ=settings.current_environment()),
        settings.read_seconds("HOLDFAST_HEALTH_S"),
    )
    learner = LimitLearner(configured_limits(), fixed_limits())
    live = LiveWriter(settings.read_seconds("HOLDFAST_LIVE_S"))
    port = LivePort(settings.read_text("HOLDFAST_SERVE"))
    window_s = settings.read_seconds("HOLDFAST_STRAGGLER_S")
    watcher = NodeWatcher(learner, health, live, window_s, port)
    requests = read_requests()
    due = time.monotonic()
    while True:
        try:
            request = requests.get(timeout=max(due - time.monotonic(), 0))
        except queue.Empty:
            due = time.monotonic() + (SUSPICION_TICK_S if watcher.is_suspecting else TICK_S)
            replies = watcher.tick()
        else:
            if request is None:
                watcher.end_orphans()
                break
            replies = watcher.handle(request)
        for reply in replies:
            send(reply)
    live.close()
    port.close()
    if not health.close():
        os._exit(0)  # a normal exit would wait for a check that blocks


if __name__ == "__main__":
    main()

"""The elastic agent of a node: torch's agent with hooks, a store per generation, and timeouts.

It calls ``AgentHooks``, which ``launcher/agent.py`` implements, and knows nothing of verdicts. It
overrides private methods of torch's agent; tested with torch 2.13.0.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import time
from contextlib import suppress
from typing import Any, NoReturn

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler

from holdfast.core.errors import HostUnfit
from holdfast.core.text import pluralize
from holdfast.launcher.elastic import generation, membership, termination, worker_replacement
from holdfast.launcher.elastic.command_line import EnvironmentLogs
from holdfast.launcher.elastic.generation import (
    AgentHooks,
    Generation,
    GenerationEnd,
    NodeStatus,
    Order,
    OrderAction,
    StatusBoard,
    Worker,
)
from holdfast.launcher.elastic.interruptible_wait import AgentSignals, WaitReporter, run_in_thread
from holdfast.launcher.elastic.standby_workers import StandbyMode, StandbyPool
from holdfast.launcher.elastic.worker_start import use_own_start
from holdfast.launcher.terminal.connection import LINE_PREFIX, TerminalRelay
from holdfast.training.store_wait import wait_until
from holdfast.watcher import shared_memory_cleanup

#: After a failure, torch decides if the hooks propose no order within this time.
HOOKS_TIMEOUT_S = 15.0
#: Time for nodes to agree on a proposal, and for the leader to wait for other nodes at the end.
AGREEMENT_TIMEOUT_S = 3.0
#: Monitoring interval after a worker failed.
_FAILED_INTERVAL_S = 0.01
#: torch's agent sleeps between monitoring calls and misses exits meanwhile; we wait instead.
_NO_SLEEP_S = 1e-6


class Agent(LocalElasticAgent):
    """Starts, monitors and terminates the workers of one node, of MIN to MAX ``nodes``."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        hooks: AgentHooks,
        signals: AgentSignals,
        logs: LogsSpecs | None,
        standby: StandbyMode = StandbyMode.OFF,
        terminal: TerminalRelay | None = None,
        nodes: tuple[int, int],
        **torch_arguments: Any,
    ) -> None:
        torch_arguments["logs_specs"] = EnvironmentLogs(
            logs or torch_arguments["logs_specs"], self._complete_environment
        )
        if not torch_arguments.get("log_line_prefix_template"):
            torch_arguments["log_line_prefix_template"] = LINE_PREFIX
        self._interval_s = spec.monitor_interval
        spec = dataclasses.replace(spec, monitor_interval=_NO_SLEEP_S)
        super().__init__(spec, **torch_arguments)
        self._hooks = hooks
        self._signals = signals
        self._rendezvous_calls = membership.BackgroundCalls(spec.rdzv_handler)
        self._standby = StandbyPool(standby, hooks.notify, hooks.available_memory)
        self._terminal = terminal
        self._single_node = nodes[1] == 1  # no other node can ever join
        self._elastic = nodes[0] < nodes[1]  # workers also restart when nodes join or leave
        self._joined: list[generation.JoinedGeneration] = []
        self._join_count = 0
        self._other_children: frozenset[int] = frozenset()  # not workers
        self._board = StatusBoard(None, 0, 1)
        self._generation: Generation | None = None
        self._order: Order | None = None
        self._failed_at: float | None = None
        self._proposed_at: float | None = None
        self._survivors = worker_replacement.SurvivingRanks()
        signals.kill, signals.forward = self._kill_workers, self._forward_signal

    # Rendezvous

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        order = self._order
        if (
            order is not None
            and order.action is OrderAction.EXCLUDE
            and worker_group.group_rank in order.excluded
        ):
            self._leave(order, worker_group.spec.rdzv_handler)
        self._board.close(0)
        self._join_in_thread(worker_group)

    def _leave(self, order: Order, handler: RendezvousHandler) -> NoReturn:
        """Leave the job, which excluded this node and continues without it."""
        self._standby.close()
        self._board.close(AGREEMENT_TIMEOUT_S)
        reporter = WaitReporter(
            self._hooks.notify, "the end of the job, whose rendezvous this process hosts"
        )
        run_in_thread(functools.partial(membership.leave, handler), reporter.tick)
        raise HostUnfit(
            os.uname().nodename, why=order.reason, next_step="check it with `holdfast check`"
        )

    def _join_in_thread(self, group: WorkerGroup) -> None:
        """Join the next generation; torch waits for other nodes in C++, which blocks signals."""
        reporter = WaitReporter(self._hooks.notify, "the other nodes to join")
        run_in_thread(functools.partial(self._join, group), reporter.tick)

    def _join(self, group: Any) -> None:  # a WorkerGroup, whose attributes are declared as None
        self._hooks.prepare()
        self._rendezvous_calls.begin_round()
        spec = group.spec
        if not (self._single_node and self._join_count):
            excludes = self._order is not None and self._order.action is OrderAction.EXCLUDE
            limit_s = membership.LAST_CALL_S if excludes else None
            with membership.last_call_timeout(spec.rdzv_handler, limit_s):
                super()._rendezvous(group)
        # A dynamic rendezvous has a store prefix per round; a static one has not.
        static = spec.rdzv_handler.get_backend() == "static" or self._single_node
        joined = generation.join_generation(
            group.store,
            f"holdfast/{self._join_count}" if static else "holdfast",
            node=group.group_rank,
            nodes=group.group_world_size,
            endpoint=generation.StoreEndpoint(
                group.master_addr, int(spec.master_port or 0), self._join_count
            ),
            arrival=generation.NodeArrival(
                len(group.workers), self._restarts, self._hooks.export_state()
            ),
        )
        if joined.state:
            self._hooks.import_state(joined.state)
        self._join_count += 1
        self._joined.append(joined)
        group.master_addr, group.master_port = joined.address, joined.port
        self._remaining_restarts = max(spec.max_restarts - joined.restarts, 0)

    @property
    def _restarts(self) -> int:
        """Return the number of restarts so far, which is the number of the generation."""
        return int(self._worker_group.spec.max_restarts - self._remaining_restarts)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._other_children = termination.children_of(os.getpid()) - self._standby.pids
        try:
            with use_own_start(self._standby, self._terminal):
                pids: dict[int, Any] = super()._start_workers(worker_group)
        except BaseException:  # a signal while workers start: torch does not know them yet
            self._kill([])
            raise
        self._signals.install()  # torch has just installed its own handlers
        self._begin_generation(pids)
        return pids

    def _begin_generation(self, pids: dict[int, Any]) -> None:
        self._joined = self._joined[-2:]  # survivors may still use the previous store
        self._order = self._failed_at = self._proposed_at = None
        group: Any = self._worker_group
        node, nodes = group.group_rank, group.group_world_size
        self._board = StatusBoard(self._joined[-1].store if nodes > 1 else None, node, nodes)
        self._generation = Generation(
            number=self._restarts,
            node=node,
            nodes=nodes,
            world_size=group.workers[0].world_size,
            workers=tuple(
                Worker(each.global_rank, each.local_rank, pids[each.local_rank])
                for each in group.workers
            ),
            board=self._board,
            address=str(group.master_addr),
            port=int(group.master_port),
            leader_workers=self._joined[-1].leader_workers,
        )
        self._hooks.workers_started(self._generation)

    def _complete_environment(self, environment: dict[str, str]) -> None:
        """Complete the environment of a worker that is about to start."""
        restarts = int(environment["TORCHELASTIC_RESTART_COUNT"])
        environment["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
        environment["HOLDFAST_SPARES"] = str(self._standby.mode)
        environment.update(self._hooks.worker_environment(int(environment["RANK"]), restarts))

    # Monitoring

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        termination.wait_for_exit(
            list(self._children().values()),
            _FAILED_INTERVAL_S if self._failed_at else self._interval_s,
        )
        codes = self._exit_codes()
        self._update_survivors(codes)
        order = self._poll_order(codes)
        if order is not None:
            self._accept(order)
            if self._replace_dead(order):
                return RunResult(state=WorkerState.HEALTHY)
            self._end_generation(signal.SIGTERM, GenerationEnd.FAILED)
            if order.action is OrderAction.STOP:
                self._remaining_restarts = 0
            return RunResult(state=WorkerState.FAILED, failures=self._failures())
        if any(codes.values()):
            # torch would terminate the other workers now, whose state is the evidence.
            self._failed_at = self._failed_at or time.monotonic()
            if time.monotonic() - self._failed_at < HOOKS_TIMEOUT_S:
                return RunResult(state=WorkerState.HEALTHY)
        elif len(codes) < len(worker_group.workers):
            if self._remaining_restarts or self._elastic:
                self._standby.tick()
            # Without asking torch, which would act on an exit that was not in `codes` yet.
            return RunResult(state=WorkerState.HEALTHY)
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _update_survivors(self, codes: dict[int, int]) -> None:
        """Post this node's dead ranks and whether they are replaceable; attend to the survivors."""
        current = self._generation
        if current is None:
            return
        dead = sorted(rank for rank, code in codes.items() if code)
        dead_elsewhere = self._board.read("dead")
        if current.nodes > 1 and (dead or dead_elsewhere):
            self._board.post("dead", f"{int(self._is_replaceable_here)} {dead}")
        if not dead and not dead_elsewhere and self._pcontext is not None:
            self._survivors.release_waiting(self._pcontext.envs)
        ranks = {worker.local_rank: worker.rank for worker in current.workers}
        for local_rank in self._survivors.take_unresponsive():
            self._hooks.notify(
                f"rank {ranks[local_rank]} did not restart in process within "
                f"{worker_replacement.ACCEPT_TIMEOUT_S:g} s; killing it"
            )
            with suppress(ProcessLookupError):
                os.kill(self._children()[local_rank].pid, signal.SIGKILL)

    @property
    def _is_replaceable_here(self) -> bool:
        """Return whether dead ranks of this node can be replaced while the others continue."""
        current = self._generation
        return current is not None and worker_replacement.can_replace(
            self._pcontext, current.workers
        )

    @property
    def _is_replaceable(self) -> bool:
        """Return whether a rank died, and all nodes support replacing dead ranks."""
        current, posted = self._generation, self._board.read("dead")
        if current is None or not (posted or any(self._exit_codes().values())):
            return False
        return (
            self._is_replaceable_here
            and len(posted) == current.nodes - 1
            and all(text.startswith("1") for text in posted.values())
        )

    def _replace_dead(self, order: Order) -> bool:
        """Carry out a REPLACE; return False where it must become a restart of this node's workers.

        If the node's ranks have changed after the rendezvous, all its workers start again.
        """
        current, group, codes = self._generation, self._worker_group, self._exit_codes()
        if (
            current is None
            or order.action is not OrderAction.REPLACE
            or not self._is_replaceable_here
            or self._remaining_restarts == 0
        ):
            return False
        ranks = {worker.rank: worker.local_rank for worker in current.workers}
        if set(codes) != ranks.keys() & set(order.ranks) or len(order.ranks) >= current.world_size:
            return False
        self._hooks.workers_ended(GenerationEnd.FAILED)
        self._remaining_restarts -= 1
        self._board.close(0)
        self._join_in_thread(group)
        dead = {ranks[rank] for rank in codes}
        if {each.global_rank: each.local_rank for each in group.workers} != ranks:
            self._kill_workers()  # a trace file belongs to one rank
            dead = set(ranks.values())
        changed = worker_replacement.changed_environments(group, self._restarts)
        environments = worker_replacement.start_replacements(
            self._pcontext,
            dead,
            changed,
            self._logs_specs,
            self._standby,
            self._terminal,
            str(self._log_line_prefix_template),
        )
        self._survivors.notify(environments, set(ranks.values()) - dead)
        pids = {local_rank: child.pid for local_rank, child in self._children().items()}
        for worker in group.workers:
            worker.id = pids[worker.local_rank]  # torch compares them when monitoring
        self._begin_generation(pids)
        return True

    def _poll_order(self, codes: dict[int, int]) -> Order | None:
        """Propose what the hooks want; return the order that the nodes agreed on."""
        if self._proposed_at is None and self._board.order() is None:
            waiting = membership.count_waiting_nodes(self._worker_group.spec.rdzv_handler)
            status = NodeStatus(codes, waiting, replaceable=self._is_replaceable)
            wanted = self._hooks.tick(status)
            if wanted is not None:
                self._proposed_at = time.monotonic()
                self._board.propose(wanted)
        elif (
            self._proposed_at is not None
            and time.monotonic() - self._proposed_at > AGREEMENT_TIMEOUT_S
        ):
            self._board.lost = True
        return self._board.order()

    def _accept(self, order: Order) -> None:
        if self._order is None:
            self._order = order
            self._hooks.order_agreed(order)

    def _children(self) -> dict[int, termination.PopenLike]:
        """Return the workers' processes by local rank, dead or alive."""
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return {local_rank: handler.proc for local_rank, handler in handlers.items()}

    def _exit_codes(self) -> dict[int, int]:
        """Return the exit codes of the workers that ended, by rank."""
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        polled = {ranks[local_rank]: child.poll() for local_rank, child in self._children().items()}
        return {rank: code for rank, code in polled.items() if code is not None}

    def _failures(self) -> dict[int, ProcessFailure]:
        """Return the failed workers; at least one, because torch treats none as success."""
        files = self._pcontext.error_files if self._pcontext is not None else {}
        codes = self._exit_codes()
        failed = (
            {rank: code for rank, code in codes.items() if code != 0}
            or dict.fromkeys(codes, 1)
            or {0: 1}
        )
        return {
            worker.global_rank: ProcessFailure(
                local_rank=worker.local_rank,
                pid=int(worker.id or 0),
                exitcode=failed[worker.global_rank],
                error_file=files.get(worker.local_rank, ""),
            )
            for worker in self._worker_group.workers
            if worker.global_rank in failed
        }

    # Termination

    def _shutdown(
        self, death_sig: signal.Signals = signal.SIGTERM, *rest: Any, **named: Any
    ) -> None:
        if self._generation is not None:
            self._end_generation(death_sig, self._reason_of_shutdown(self._generation))
        super()._shutdown(death_sig, *rest, **named)

    def _reason_of_shutdown(self, current: Generation) -> GenerationEnd:
        """Return why torch ends the workers without an order of ours."""
        codes = self._exit_codes()
        if self._signals.received is not None:
            return GenerationEnd.INTERRUPTED
        if len(codes) == len(current.workers) and not any(codes.values()):
            return GenerationEnd.CLEAN
        # A node that restarts because of a failure posts an order before it joins again.
        limit_s = 2 * generation.READ_EVERY_S if current.nodes > 1 else 0.0
        wait_until(lambda: self._board.order() is not None, lambda: limit_s)
        order = self._board.order()
        if order is not None:
            self._accept(order)
        failed = order is not None or any(codes.values())
        return GenerationEnd.FAILED if failed else GenerationEnd.REPLACED

    def _end_generation(self, number: signal.Signals, how: GenerationEnd) -> None:
        """Terminate the workers of this generation and notify the hooks."""
        current = self._generation
        if current is None:
            return
        if how is not GenerationEnd.CLEAN:
            self._terminate_workers(current, number, how)
        codes = {code for code in self._exit_codes().values() if code != 0}
        if self._signals.received is not None and codes == {128 + self._signals.received}:
            self._signals.status = 128 + self._signals.received
        if self._pcontext is not None:
            self._pcontext.close()  # ends the threads that print the output
            for handler in getattr(self._pcontext, "subprocess_handlers", {}).values():
                for name in ("_stdout", "_stderr"):
                    if log := getattr(handler, name, None):
                        log.close()  # torch leaves them open
        if self._terminal is not None:
            self._terminal.finish_generation()
        shared_memory_cleanup.remove_shared_memory(current.address, current.port)
        self._generation = None
        self._hooks.workers_ended(how)

    def _terminate_workers(
        self, current: Generation, number: signal.Signals, how: GenerationEnd
    ) -> None:
        order = self._order
        grace_s = float(getattr(self, "_shutdown_timeout", 30))
        if how is GenerationEnd.INTERRUPTED:
            grace_s = termination.interrupt_grace_s(grace_s)
            self._hooks.notify(
                f"{number.name}: the workers have {grace_s:g} s to exit; "
                "a second signal kills them at once"
            )
        if order is not None and order.grace_s is not None:
            grace_s = order.grace_s
        stuck = order.stuck if order is not None else ()
        termination.terminate(
            list(self._children().values()),
            signal_number=number,
            grace_s=grace_s,
            kill_first={worker.pid for worker in current.workers if worker.rank in stuck},
            spared=self._spared,
        )

    @property
    def _spared(self) -> frozenset[int]:  # children of this process that belong to no worker
        return self._other_children | self._standby.pids | self._hooks.helpers()

    def _kill_workers(self) -> None:
        """Kill all workers immediately, as the second signal does."""
        self._kill(list(self._children().values()))

    def _kill(self, workers: list[termination.PopenLike]) -> None:
        termination.terminate(workers, signal_number=signal.SIGKILL, grace_s=0, spared=self._spared)

    def _forward_signal(self, number: signal.Signals) -> None:
        """Forward a scheduler's warning to the workers that handle it; they save and exit."""
        children = [child.pid for child in self._children().values()]
        pids = [pid for pid in children if termination.handles_signal(pid, number)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        what = f"forwarded to {pluralize(len(pids), 'worker')}" if pids else "no worker handles it"
        self._hooks.notify(f"{number.name}: {what}")

    # The end of the job

    def run(self, role: str = "default") -> RunResult:
        """Run the job on this node. A waiting node that was never needed has succeeded."""
        try:
            return super().run(role) or RunResult(state=WorkerState.SUCCEEDED)
        finally:
            self._standby.close()
            self._board.close(AGREEMENT_TIMEOUT_S)

    def _invoke_run(self, role: str = "default") -> RunResult:
        while True:
            result = super()._invoke_run(role)
            order = self._order
            if result.state is not WorkerState.SUCCEEDED or order is None:
                return result
            if order.action is OrderAction.STOP or self._remaining_restarts == 0:
                return RunResult(state=WorkerState.FAILED, failures=self._failures())
            self._remaining_restarts -= 1  # another node failed after our workers had ended
            self._stop_workers(self._worker_group)

    def _exit_barrier(self) -> None:
        """Wait for the other nodes as torch does, but keep monitoring: one may still fail."""
        current = self._generation
        if current is None or current.nodes == 1:
            return
        self._board.post("done", "1")
        seen: dict[int, str] = {}
        deadline = 0.0
        while not self._board.lost and len(done := self._board.read("done")) < current.nodes - 1:
            order = self._poll_order(self._exit_codes())
            if order is not None:
                self._accept(order)
                return
            if (now := {**done, **self._board.read("summary")}) != seen or not deadline:
                seen, deadline = now, time.monotonic() + self._exit_barrier_timeout
            if time.monotonic() > deadline:
                return
            time.sleep(self._interval_s)

"""The elastic agent of a node: torch's own, which calls hooks, opens a store a generation, and does not wait in vain.

It knows the Protocol ``Hooks`` and nothing of verdicts: ``actions/agent.py`` supplies them, ``launch.py`` starts it. It
overrides private steps of torch's agent, each for one purpose: tested with torch 2.13.0.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import time
from contextlib import suppress
from typing import Any, NoReturn

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousHandler

from holdfast import settings
from holdfast.errors import HostUnfit
from holdfast.report.text import plural
from holdfast.runtime import ending, generation, leftovers, membership, replacing
from holdfast.runtime.generation import Board, Choice, End, Generation, Hooks, Look, Order, Worker
from holdfast.runtime.patience import Signals, Waiting, in_thread
from holdfast.runtime.spares import Mode, Spares, handed_out
from holdfast.runtime.torchrun import CompletedLogs

LINE_PREFIX = "[rank${rank}]: "
#: A worker failed and the hooks gave no order for so long: torch goes on without them.
HOOKS_LIMIT_S = 15.0
#: How long a proposal may take to become everybody's order, and the leader waits for the other nodes at the end.
AGREE_LIMIT_S = 3.0
#: Between two looks once a worker has failed: everybody waits for what is decided.
HURRY_S = 0.01
#: torch's agent sleeps between two looks, deaf to the end of a worker: we wait in its place.
_NO_SLEEP_S = 1e-6


class Agent(LocalElasticAgent):
    """Starts, watches and ends the workers of one node."""

    def __init__(
        self, spec: WorkerSpec, *, hooks: Hooks, signals: Signals, logs: LogsSpecs | None, spares: Mode = Mode.OFF,
        alone: bool = False, **own: Any,
    ) -> None:  # fmt: skip
        own["logs_specs"] = CompletedLogs(logs or own["logs_specs"], self._complete)
        own["log_line_prefix_template"] = own.get("log_line_prefix_template") or LINE_PREFIX
        self._interval_s = spec.monitor_interval
        super().__init__(dataclasses.replace(spec, monitor_interval=_NO_SLEEP_S), **own)
        self._hooks = hooks
        self._signals = signals
        self._spares = Spares(spares, hooks.note, hooks.room)
        self._alone = alone  # the job has one node and can never have more
        self._joined: list[generation.Joined] = []
        self._attempts = 0
        self._others: frozenset[int] = frozenset()  # processes of ours that are no workers
        self._board = Board(None, 0, 1)
        self._generation: Generation | None = None
        self._order: Order | None = None
        self._failed_at: float | None = None
        self._proposed_at: float | None = None
        self._survivors = replacing.Survivors()
        signals.kill, signals.pass_on = self._kill, self._pass_on

    # Coming together

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """In a thread: torch waits for the other nodes in C++, where no signal would reach us."""
        order = self._order
        if order is not None and order.choice is Choice.EXCLUDE and worker_group.group_rank in order.excluded:
            self._leave(order, worker_group.spec.rdzv_handler)
        self._board.leave(0)
        waiting = Waiting(self._hooks.note, "the other nodes to join")
        in_thread(functools.partial(self._join, worker_group), waiting.tick)

    def _leave(self, order: Order, handler: RendezvousHandler) -> NoReturn:
        """This node was sent away: it takes its leave of the others, who go on."""
        self._spares.close()
        self._board.leave(AGREE_LIMIT_S)
        waiting = Waiting(self._hooks.note, "the end of the job, whose nodes meet at this one: it keeps only that")
        in_thread(functools.partial(membership.leave, handler), waiting.tick)
        raise HostUnfit(os.uname().nodename, why=order.reason, next_step="let `holdfast check` look at it")

    def _join(self, group: Any) -> None:  # WorkerGroup, whose attributes are declared to be None
        self._hooks.prepare()
        spec = group.spec
        if getattr(spec.rdzv_handler, "_bootstrap_store_info", None) is not None:
            # torch 2.13 announces it in the first round only: a node that joins later would wait for it in vain.
            spec.rdzv_handler._bootstrap_store_info = None  # noqa: SLF001
        if not (self._alone and self._attempts):  # with whom should a job of one node come together again?
            excluding = self._order is not None and self._order.choice is Choice.EXCLUDE
            with membership.last_call(spec.rdzv_handler, membership.LAST_CALL_S if excluding else None):
                super()._rendezvous(group)
        # The store of a dynamic rendezvous has a prefix for each round; that of a static one has not.
        static = spec.rdzv_handler.get_backend() == "static" or self._alone
        joined = generation.join(
            group.store, f"holdfast/{self._attempts}" if static else "holdfast",
            node=group.group_rank, nodes=group.group_world_size, address=group.master_addr,
            restarts=spec.max_restarts - self._remaining_restarts, state=self._hooks.handover(),
        )  # fmt: skip
        self._hooks.take_over(joined.state)
        self._attempts += 1
        self._joined.append(joined)
        group.master_addr, group.master_port = joined.address, joined.port
        self._remaining_restarts = max(spec.max_restarts - joined.restarts, 0)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self._others = ending.children_of(os.getpid()) - self._spares.pids
        try:
            with handed_out(self._spares):
                pids: dict[int, Any] = super()._start_workers(worker_group)
        except BaseException:  # a signal came between the first worker and the last: torch knows of none
            ending.end([], word=signal.SIGKILL, patience_s=0, spared=self._spared)
            raise
        self._signals.listen()  # torch has just put its own handlers there
        self._begin(pids)
        return pids

    def _begin(self, pids: dict[int, Any]) -> None:
        self._joined = self._joined[-2:]  # survivors of the generation before this one may still use its store
        self._order = self._failed_at = self._proposed_at = None
        self._generation = self._describe(self._worker_group, pids)
        self._board = self._generation.board
        self._hooks.started(self._generation)

    def _describe(self, group: Any, pids: dict[int, Any]) -> Generation:
        node, nodes = group.group_rank, group.group_world_size
        return Generation(
            number=group.spec.max_restarts - self._remaining_restarts,
            node=node,
            nodes=nodes,
            world_size=group.workers[0].world_size,
            restarts_left=self._remaining_restarts,
            workers=tuple(Worker(each.global_rank, each.local_rank, pids[each.local_rank]) for each in group.workers),
            board=Board(self._joined[-1].store if nodes > 1 else None, node, nodes),
            address=str(group.master_addr), port=int(group.master_port),
        )  # fmt: skip

    def _complete(self, environment: dict[str, str]) -> None:
        """Complete the environment of a worker that is about to start."""
        restarts = int(environment["TORCHELASTIC_RESTART_COUNT"])
        environment["TORCHELASTIC_USE_AGENT_STORE"] = str(True)
        environment["HOLDFAST_SPARES"] = str(self._spares.mode)
        environment.update(self._hooks.variables(int(environment["RANK"]), restarts))

    # Looking after the workers

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        ending.wait(list(self._children().values()), HURRY_S if self._failed_at else self._interval_s)
        codes = self._codes()
        self._mind_survivors(codes)
        order = self._ask(codes)
        if order is not None:
            self._obey(order)
            if self._replaced(order):
                return RunResult(state=WorkerState.HEALTHY)
            self._end_workers(signal.SIGTERM, End.FAILED)
            if order.choice is Choice.STOP:
                self._remaining_restarts = 0
            return RunResult(state=WorkerState.FAILED, failures=self._failures())
        if any(codes.values()):
            # torch would now end the other workers, whose state is the evidence.
            self._failed_at = self._failed_at or time.monotonic()
            if time.monotonic() - self._failed_at < HOOKS_LIMIT_S:
                return RunResult(state=WorkerState.HEALTHY)
        elif len(codes) < len(worker_group.workers):
            self._spares.tick()
            return RunResult(state=WorkerState.HEALTHY)  # torch, if asked, would act on a death that came just now
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _mind_survivors(self, codes: dict[int, int]) -> None:
        """Tell the other nodes who died here and whether the rest could go on, and answer those that wait for it."""
        current = self._generation
        if current is None:
            return
        dead, elsewhere = sorted(rank for rank, code in codes.items() if code), self._board.read("dead")
        if current.nodes > 1 and (dead or elsewhere):
            self._board.post("dead", f"{int(self._able)} {dead}")
        if not dead and not elsewhere and self._pcontext is not None:
            self._survivors.send_back(self._pcontext.envs)
        for local_rank in self._survivors.silent():
            rank, child = next(each.rank for each in current.workers if each.local_rank == local_rank), self._children()
            self._hooks.note(f"rank {rank} did not go on within {replacing.ANSWER_LIMIT_S:g} s: it is ended")
            with suppress(ProcessLookupError):
                os.kill(child[local_rank].pid, signal.SIGKILL)

    @property
    def _able(self) -> bool:
        """Whether dead ranks of this node can be replaced while the others live on."""
        current = self._generation
        return current is not None and replacing.can(self._pcontext, current.workers)

    @property
    def _in_place(self) -> bool:
        """Whether a rank of the job died, and all nodes said that they can go on."""
        current, told = self._generation, self._board.read("dead")
        if current is None or not (told or any(self._codes().values())):
            return False
        return self._able and len(told) == current.nodes - 1 and all(each.startswith("1") for each in told.values())

    def _replaced(self, order: Order) -> bool:
        """Carry out a REPLACE, if everything is as it should be; the others have then been told to go on in place.

        A node where it is not starts all of its ranks again, and the others meet those.
        """
        current, group, codes = self._generation, self._worker_group, self._codes()
        if current is None or order.choice is not Choice.REPLACE or not self._able or self._remaining_restarts == 0:
            return False
        ranks = {worker.rank: worker.local_rank for worker in current.workers}
        if set(codes) != ranks.keys() & set(order.ranks) or len(order.ranks) >= current.world_size:
            return False
        self._hooks.ended(End.FAILED)
        self._remaining_restarts -= 1
        self._board.leave(0)
        in_thread(functools.partial(self._join, group), Waiting(self._hooks.note, "the other nodes to join").tick)
        dead = {ranks[rank] for rank in codes}
        if {each.global_rank: each.local_rank for each in group.workers} != ranks:  # a box belongs to one rank
            ending.end(list(self._children().values()), word=signal.SIGKILL, patience_s=0, spared=self._spared)
            dead = set(ranks.values())
        changed = {each.local_rank: self._variables(each) for each in group.workers}
        told = replacing.start(self._pcontext, dead, changed, self._logs_specs, self._spares, LINE_PREFIX)
        self._survivors.tell(told, set(ranks.values()) - dead)
        pids = {local_rank: child.pid for local_rank, child in self._children().items()}
        for worker in group.workers:
            worker.id = pids[worker.local_rank]  # torch compares them at each look
        self._begin(pids)
        return True

    def _variables(self, worker: Any) -> dict[str, str]:
        """What is different in the environment of a worker in a generation that it did not begin."""
        group = self._worker_group
        return {
            "MASTER_ADDR": str(group.master_addr), "MASTER_PORT": str(group.master_port),
            "RANK": str(worker.global_rank), "WORLD_SIZE": str(worker.world_size),
            "ROLE_RANK": str(worker.role_rank), "ROLE_WORLD_SIZE": str(worker.role_world_size),
            "GROUP_RANK": str(group.group_rank), "GROUP_WORLD_SIZE": str(group.group_world_size),
            "TORCHELASTIC_RESTART_COUNT": str(group.spec.max_restarts - self._remaining_restarts),
        }  # fmt: skip

    @property
    def _spared(self) -> frozenset[int]:
        """Processes of ours that are no workers."""
        return self._others | self._spares.pids

    def _ask(self, codes: dict[int, int]) -> Order | None:
        """Ask the hooks, propose what they want, and return what the nodes agreed upon."""
        if self._proposed_at is None and self._board.order() is None:
            wanted = self._hooks.tick(Look(codes, self._standing_by, in_place=self._in_place))
            if wanted is not None:
                self._proposed_at = time.monotonic()
                self._board.propose(wanted)
        elif self._proposed_at is not None and time.monotonic() - self._proposed_at > AGREE_LIMIT_S:
            self._board.lost = True
        return self._board.order()

    @property
    def _standing_by(self) -> int:
        return membership.standing_by(self._worker_group.spec.rdzv_handler)

    def _obey(self, order: Order) -> None:
        if self._order is None:
            self._order = order
            self._hooks.decided(order)

    def _children(self) -> dict[int, ending.Child]:
        """The workers' processes by local rank, dead or alive."""
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return {local_rank: handler.proc for local_rank, handler in handlers.items()}

    def _codes(self) -> dict[int, int]:
        """Exit codes of the workers that ended, by rank."""
        ranks = {worker.local_rank: worker.global_rank for worker in self._worker_group.workers}
        polled = {ranks[local_rank]: child.poll() for local_rank, child in self._children().items()}
        return {rank: code for rank, code in polled.items() if code is not None}

    def _failures(self) -> dict[int, ProcessFailure]:
        """The workers that did not end with 0. At least one, even if all did: torch takes none for success."""
        files = self._pcontext.error_files if self._pcontext is not None else {}
        codes = self._codes()
        failed = {rank: code for rank, code in codes.items() if code != 0} or dict.fromkeys(codes, 1) or {0: 1}
        return {
            worker.global_rank: ProcessFailure(
                local_rank=worker.local_rank, pid=int(worker.id or 0), exitcode=failed[worker.global_rank],
                error_file=files.get(worker.local_rank, ""),
            )
            for worker in self._worker_group.workers if worker.global_rank in failed
        }  # fmt: skip

    # Ending

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, *rest: Any, **given: Any) -> None:
        if self._generation is not None:
            self._end_workers(death_sig, self._why_now(self._generation))
        super()._shutdown(death_sig, *rest, **given)

    def _why_now(self, current: Generation) -> End:
        """Why the workers are to be ended although no order of ours said so."""
        codes = self._codes()
        if self._signals.received is not None:
            return End.INTERRUPTED
        if len(codes) == len(current.workers) and not any(codes.values()):
            return End.CLEAN
        until = time.monotonic() + (2 * generation.READ_EVERY_S if current.nodes > 1 else 0)
        while (order := self._board.order()) is None and time.monotonic() < until:
            time.sleep(0.02)  # a node that restarts because of a failure posts an order before it joins again
        if order is not None:
            self._obey(order)
        return End.FAILED if order is not None or any(codes.values()) else End.REPLACED

    def _end_workers(self, word: signal.Signals, how: End) -> None:
        """End the workers of this generation and tell the hooks."""
        current, order = self._generation, self._order
        if current is None:
            return
        patience_s = float(getattr(self, "_shutdown_timeout", 30))
        if how is End.INTERRUPTED:
            patience_s = max(patience_s, settings.seconds("HOLDFAST_GRACE_S"))
            self._hooks.note(f"{word.name}: the workers have {patience_s:g} s to end; once more ends them at once")
        if how is not End.CLEAN:
            stuck = order.stuck if order is not None else ()
            ending.end(
                list(self._children().values()), word=word,
                patience_s=order.patience_s if order is not None and order.patience_s is not None else patience_s,
                at_once={worker.pid for worker in current.workers if worker.rank in stuck}, spared=self._spared,
            )  # fmt: skip
        left = {code for code in self._codes().values() if code != 0}
        if self._signals.received is not None and left == {128 + self._signals.received}:
            self._signals.status = 128 + self._signals.received
        if self._pcontext is not None:
            self._pcontext.close()  # all are dead: this ends the threads that show their output
            for handler in getattr(self._pcontext, "subprocess_handlers", {}).values():
                for log in filter(None, (getattr(handler, "_stdout", None), getattr(handler, "_stderr", None))):
                    log.close()  # torch leaves them open
        leftovers.remove(current.address, current.port)
        self._generation = None
        self._hooks.ended(how)

    def _kill(self) -> None:
        """What the second signal does."""
        ending.end(list(self._children().values()), word=signal.SIGKILL, patience_s=0, spared=self._spared)

    def _pass_on(self, word: signal.Signals) -> None:
        """Tell the workers of a scheduler's warning: those that listen save and leave, which is seen as any end is."""
        told = [child.pid for child in self._children().values() if ending.catches(child.pid, word)]
        for pid in told:
            with suppress(ProcessLookupError):
                os.kill(pid, word)
        self._hooks.note(
            f"{word.name}: " + (f"{plural(len(told), 'worker')} told" if told else "no worker listens to it")
        )

    # The end of the job

    def run(self, role: str = "default") -> RunResult:
        """Run the job to its end on this node. A spare node that was never needed has succeeded."""
        try:
            return super().run(role) or RunResult(state=WorkerState.SUCCEEDED)
        finally:
            self._spares.close()
            self._board.leave(AGREE_LIMIT_S)

    def _invoke_run(self, role: str = "default") -> RunResult:
        while True:
            result = super()._invoke_run(role)
            order = self._order
            if result.state is not WorkerState.SUCCEEDED or order is None:
                return result
            if order.choice is Choice.STOP or self._remaining_restarts == 0:
                return RunResult(state=WorkerState.FAILED, failures=self._failures())
            self._remaining_restarts -= 1  # another node failed after the workers of this one had ended
            self._stop_workers(self._worker_group)

    def _exit_barrier(self) -> None:
        """Wait for the other nodes as torch does, but go on watching: one of them may hang or fail yet."""
        current = self._generation
        if current is None or current.nodes == 1:
            return
        self._board.post("done", "1")
        seen: dict[int, str] = {}
        until = 0.0
        while not self._board.lost and len(done := self._board.read("done")) < current.nodes - 1:
            order = self._ask(self._codes())
            if order is not None:
                self._obey(order)
                return
            if (now := {**done, **self._board.read("summary")}) != seen or not until:
                seen, until = now, time.monotonic() + self._exit_barrier_timeout
            if time.monotonic() > until:
                return
            time.sleep(self._interval_s)

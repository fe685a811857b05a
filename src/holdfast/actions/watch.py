"""The watcher: a process of its own beside each node's agent, which sees the ranks from outside and judges silence.

``python -m holdfast.actions.watch`` reads orders (one JSON object a line) from the agent on stdin and answers on
stdout. It reads the boxes twice a second, which costs the job nothing; stacks are taken only when the whole job is
silent. The leader's watcher (beside the rendezvous) receives the others' summaries, judges, and writes the incident.
"""

from __future__ import annotations

import base64
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from holdfast import settings
from holdfast.actions import incident
from holdfast.actions.health import Health
from holdfast.actions.judgement import Judgement
from holdfast.actions.learning import Learner
from holdfast.actions.orphans import Family, clear_up
from holdfast.actions.scene import scene
from holdfast.actions.stragglers import Stragglers
from holdfast.facts.checks import Place
from holdfast.facts.dump_requests import DumpPlace
from holdfast.facts.node import Node, Summary, Worker, combine
from holdfast.findings import verdict_to_json
from holdfast.rules.stall import Limits

TICK_S = 0.5
#: Between the two close looks at a silent job.
HURRY_S = 0.1
#: A node whose summary is older than this is said to be silent.
SUMMARY_AGE_S = 5.0
#: And once ranks have died: nodes report twice a second, and the newest reports come with the order to judge.
AFTER_DEATH_S = 2.0


class Watch:
    """The state of one watcher: the node it looks at, the other nodes' summaries, and the judgement under way."""

    def __init__(self, learner: Learner, health: Health, window_s: float) -> None:
        self._learner = learner
        self._window_s = window_s
        self._stragglers = Stragglers(0.0, warns=False)
        self._health = health
        self._node: Node | None = None
        self._family = Family(())
        self._start: dict[str, Any] = {}
        self._others: dict[str, Summary] = {}
        self._reported: dict[str, float] = {}  # by the other node's own clock
        self._judgement = Judgement(learner.limits)
        self._rest: Callable[[], None] | None = None

    @property
    def suspects(self) -> bool:
        """True while a silent job is looked into."""
        return self._judgement.suspects

    def obey(self, order: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Carry out one order of the agent and yield the answers."""
        kind = order.get("kind")
        if kind == "start":
            self._begin(order)
        elif kind == "exits" and self._node is not None:
            self._node.exits({int(rank): int(code) for rank, code in order["codes"].items()})
        elif kind == "summaries":
            for name, blob in order["blobs"].items():
                if blob:
                    self._heard(name, msgspec.msgpack.decode(base64.b85decode(blob), type=Summary))
        elif kind == "stop":
            self._node = None
            self._learner.keep()
        elif kind == "judge":
            yield self._judge_now()
            self._write_the_rest()

    def _heard(self, name: str, summary: Summary) -> None:
        """Another node reports; when, is told by this host's clock, as the others' may be wrong."""
        if self._reported.get(name) != summary.time:
            self._reported[name] = summary.time
            self._others[name] = msgspec.structs.replace(summary, time=time.time())

    def tick(self) -> Iterator[dict[str, Any]]:
        """Look once, and yield what there is to say: a summary for the leader, a note, a verdict."""
        if self._node is None:
            return
        self._family.look()
        yield from ({"kind": "note", "text": sentence} for sentence in self._health.news())
        summary = self._node.look()
        yield from ({"kind": "warning", "rank": rank, "about": about, "text": text}
                    for rank, about, text in self._node.warnings())  # fmt: skip
        if self._start["nodes"] > 1:
            if time.time() - summary.silent_since > self._learner.limits.stall_s:
                summary = self._node.look_closer()
            summary = msgspec.structs.replace(summary, health=self._health.findings, agent=self._start.get("agent", ""))
            yield {"kind": "summary", "blob": base64.b85encode(msgspec.msgpack.encode(summary)).decode()}
        if not self._start["leader"]:
            return
        self._judgement.limits = self._learner.limits
        outcome = self._judgement.consider(self._all(summary), self._node.look_closer, self._all)
        self._learner.see(outcome.table)
        if outcome.note:
            yield {"kind": "note", "text": outcome.note}
        if outcome.verdict is not None:
            yield self._report(outcome.verdict, outcome.table, hang=True, silent_s=outcome.silent_s)
            self._write_the_rest()
        slow = self._stragglers.consider(outcome.table)
        if slow is not None:
            yield self._report(slow, self._all(self._node.look_closer(stacks=False)), hang=False, silent_s=0.0)
            self._write_the_rest()

    def _begin(self, order: dict[str, Any]) -> None:
        self._start = order
        self._others, self._reported = {}, {}
        self._judgement = Judgement(self._learner.limits)
        if order.get("sections"):
            self._learner.begin(Path(order["sections"]), str(order.get("job", "")))
        workers = [
            Worker(each["rank"], each["pid"], Path(each["box"]), msgspec.convert(each.get("dumps"), DumpPlace | None))
            for each in order["workers"]
        ]
        self._node = Node(workers, order["world_size"], self._window_s)
        self._stragglers = Stragglers(self._window_s, warns=bool(order.get("exclude_stragglers")))
        self._family = Family([worker.pid for worker in workers])
        self._health.start()

    def orphaned(self) -> None:
        """The agent is gone. Unless it said before that its workers have ended, they are looked after now."""
        if self._node is not None:
            sys.stderr.write("holdfast watcher: the agent is gone; ending its workers\n")
            run, boxes = Path(self._start["run_dir"]), Path(self._start["workers"][0]["box"]).parent
            clear_up(self._family, boxes, run, (str(self._start["address"]), int(self._start["port"])))

    def _all(self, mine: Summary, oldest_s: float = SUMMARY_AGE_S) -> Summary:
        now = time.time()
        return combine([mine, *self._others.values()], now, oldest_s)

    def _judge_now(self) -> dict[str, Any]:
        if self._node is None:
            return {"kind": "note", "text": "asked to judge before any worker was started"}
        table = self._all(self._node.look_closer(stacks=False), AFTER_DEATH_S)
        return self._report(self._judgement.final(table), table, hang=False, silent_s=time.time() - table.silent_since)

    def _write_the_rest(self) -> None:
        """Of an incident, once the agent has heard of it: nobody waits for the page."""
        rest, self._rest = self._rest, None
        if rest is not None:
            rest()

    def _report(self, verdict: Any, table: Summary, *, hang: bool, silent_s: float) -> dict[str, Any]:
        run = Path(self._start["run_dir"])
        verdict = self._health.beside(verdict, table.health)
        folder, page, self._rest = incident.begin(run / "incidents", verdict, table, self._start)
        stuck = incident.stuck_ranks(verdict, table)
        agents = {int(name): other.agent for name, other in self._others.items()}
        agents[int(self._start["node"])] = self._start.get("agent", "")
        seen = scene(table, self._nodes(table), agents)
        return {
            "kind": "verdict",
            "generation": self._start["generation"],
            "hang": hang,
            "verdict": verdict_to_json(verdict),
            "stuck": stuck,
            "stopped": [state.rank for state in table.ranks if state.life == "stopped"],
            "html": str(page),
            "folder": str(folder),
            "detected_s": round(silent_s, 3),
            "scene": msgspec.to_builtins(seen, str_keys=True),
        }

    def _nodes(self, table: Summary) -> dict[int, int]:
        """The node of each rank."""
        mine = int(self._start["node"])
        others = {state.rank: int(name) for name, other in self._others.items() for state in other.ranks}
        return {state.rank: others.get(state.rank, mine) for state in table.ranks}


def orders() -> queue.Queue[dict[str, Any] | None]:
    """The agent's orders, read by a thread; None when the agent is gone."""
    arrived: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def read() -> None:
        for line in sys.stdin.buffer:
            try:
                arrived.put(msgspec.json.decode(line))
            except msgspec.DecodeError:
                sys.stderr.write(f"holdfast watcher: an order that is no JSON was ignored: {line[:80]!r}\n")
        arrived.put(None)

    threading.Thread(target=read, daemon=True).start()
    return arrived


def say(answer: dict[str, Any]) -> None:
    """One answer to the agent."""
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def limits() -> Limits:
    """The patience that the environment asks for."""
    return Limits(
        stall_s=settings.seconds("HOLDFAST_STALL_S"),
        first_step_s=settings.seconds("HOLDFAST_FIRST_STEP_S"),
        compile_s=settings.seconds("HOLDFAST_COMPILE_S"),
        checkpoint_s=settings.seconds("HOLDFAST_CHECKPOINT_S"),
        evaluation_s=settings.seconds("HOLDFAST_EVALUATION_S"),
        alone_s=settings.seconds("HOLDFAST_ALONE_S"),
        grace_s=settings.seconds("HOLDFAST_GRACE_S"),
    )


def fixed() -> tuple[str, ...]:
    """Those that the user or a preset has set, which are not learned."""
    environ, names = settings.environment(), Limits.__dataclass_fields__
    return tuple(name for name in names if environ.get(f"HOLDFAST_{name.upper()}"))


def main() -> None:
    """Watch until the agent closes the pipe or is gone; then see to it that its workers are gone too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole foreground group; the agent tells us when
    os.nice(5)  # the job comes first
    health = Health(Place(environ=settings.environment()), settings.seconds("HOLDFAST_HEALTH_S"))
    watch = Watch(Learner(limits(), fixed()), health, settings.seconds("HOLDFAST_STRAGGLER_S"))
    arrived = orders()
    due = time.monotonic()
    while True:
        try:
            order = arrived.get(timeout=max(due - time.monotonic(), 0))
        except queue.Empty:
            due = time.monotonic() + (HURRY_S if watch.suspects else TICK_S)
            answers = watch.tick()
        else:
            if order is None:
                watch.orphaned()
                break
            answers = watch.obey(order)
        for answer in answers:
            say(answer)
    if not health.close():
        os._exit(0)  # a check that blocks would be waited for


if __name__ == "__main__":
    main()

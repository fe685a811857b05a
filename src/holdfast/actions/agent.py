"""What a node does at start, tick, failure and end: it keeps the watcher informed and acts on verdicts.

:class:`NodeAgent` is the hooks that ``runtime/elastic.py`` calls. Nothing in it waits: there are workers to look after.
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

from holdfast import settings
from holdfast.actions import learning, words
from holdfast.actions.alerts import SILENT, Alerts, of_failure, of_warning
from holdfast.actions.channel import Channel
from holdfast.actions.policy import Course, Decision, Past
from holdfast.actions.recordings import Recordings
from holdfast.actions.recovery import Recovery
from holdfast.actions.run_folder import RunFolder
from holdfast.actions.words import Plan, say
from holdfast.errors import MissingFile
from holdfast.facts import collective_history
from holdfast.facts.checks import Place, memory
from holdfast.facts.environment import environment_facts
from holdfast.facts.host import host_facts
from holdfast.facts.versions import versions
from holdfast.findings import Verdict
from holdfast.report import json as json_report
from holdfast.report.terminal import render_verdict
from holdfast.report.text import plural
from holdfast.runtime.generation import Choice, End, Generation, Look, Order

QUESTION = "What went wrong with this job?"
#: How long the watcher may take to judge when workers died, and for a node that does not lead until an order arrives.
JUDGE_LIMIT_S = 3.5
LEADER_LIMIT_S = 8.0
#: With several nodes: how long until what one of them sees of a death has reached the leader's watcher.
SETTLE_S = 1.5
#: In a hang nobody saves anything: workers that are not stuck themselves have so long between SIGTERM and SIGKILL.
HANG_PATIENCE_S = 3.0
#: And before a restart after a crash: nothing that takes a collective can still be saved. Else torch's 30 s hold.
CRASH_PATIENCE_S = 5.0
#: Watchers that may end before the job goes on without one.
WATCHERS = 4
RELAY_EVERY_S = 1.0
#: File in the run's folder from which every rank copies the facts of its host into its box.
FACTS = "facts.json"


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``incidents`` in the JSON report."""

    generation: int
    verdict: Verdict
    decision: str
    html: str | None = None
    folder: str | None = None
    detected_s: float | None = None


class Message(msgspec.Struct, frozen=True):
    """What an order carries to all nodes: the incident, and what the policy made of it."""

    incident: Incident
    entry: Past


class NodeAgent:
    """The hooks of one node. The node that leads asks its watcher to judge; the others call the leader."""

    def __init__(
        self, folder: RunFolder, plan: Plan, recovery: Recovery, watcher: Channel, alerts: Alerts = SILENT
    ) -> None:
        self._folder = folder
        self._alerts = alerts
        self._plan = plan
        self._recovery = recovery
        self._restarts = 0
        self._watcher = watcher
        self._watchers_left = WATCHERS
        self._incidents: list[Incident] = []
        self._generation: Generation | None = None
        self._case = _Case()
        self._recordings = Recordings(folder.path / "flight-recorder", plan.environment)
        self._history = collective_history.folder_of(folder.path.parent)
        self._agent = secrets.token_hex(4)
        self._note_run()

    def _note_run(self) -> None:
        preset = self._plan.preset
        readings = settings.preset_readings(preset, workers=self._plan.workers) if preset else ()
        facts = {
            "schema": "holdfast/1", "run": self._folder.name, "begun": time.time(), "workers": self._plan.workers,
            "recorder": self._plan.recorder, "native": self._plan.native, "inject": self._plan.inject,
            "preset": preset, "settings": readings, "boxes": str(self._folder.boxes), "watcher": self._watcher.pid,
        }  # fmt: skip
        seen = (*versions(), *host_facts(), *environment_facts(self._plan.environment))
        self._folder.write(FACTS, msgspec.json.encode(seen))
        self._folder.write("run.json", msgspec.json.format(msgspec.json.encode(facts)))

    # The hooks

    def prepare(self) -> None:
        """What comes before this node joins: a wait, and the gate. Raises HostUnfit."""
        self._recovery.prepare()

    def handover(self) -> str:
        """What a node that joins later has to know."""
        return self._recovery.handover()

    def take_over(self, state: str) -> None:
        """Take on what the other nodes know."""
        self._recovery.take_over(state)

    def variables(self, rank: int, generation: int) -> Mapping[str, str]:
        """What worker ``rank`` gets in its environment."""
        limit_s = self._plan.group_timeout_s
        return {
            **(self._recordings.variables(rank, generation) if self._plan.recorder != "off" else {}),
            **self._plan.gaps,
            "HOLDFAST_BOX": str(self._folder.box(rank)),
            "HOLDFAST_RECORDER": self._plan.recorder,
            "HOLDFAST_NATIVE": self._plan.native,
            "HOLDFAST_INJECT": self._plan.inject,
            "HOLDFAST_WATCHER_PID": str(self._watcher.pid),
            **settings.gaps({"HOLDFAST_HISTORY": str(self._history)}),
            "HOLDFAST_FACTS": str(self._folder.path.absolute() / FACTS),
            **self._recovery.variables(),
            **({} if limit_s is None else {"HOLDFAST_GROUP_TIMEOUT_S": f"{limit_s:g}"}),
        }

    def started(self, generation: Generation) -> None:
        """Tell the watcher whom to watch, and people where everything is."""
        self._generation, self._case = generation, _Case()
        self._restarts = generation.number
        self._recovery.started(generation)
        for _ in self._watcher.answers():
            pass  # about the generation before
        workers = [
            {
                "rank": each.rank, "local_rank": each.local_rank, "pid": each.pid,
                "box": str(self._folder.box(each.rank)), "dumps": self._recordings.place(each.rank, generation.number),
            }
            for each in generation.workers
        ]  # fmt: skip
        self._case.start = {
            "generation": generation.number, "run_dir": str(self._folder.path.absolute()), "node": generation.node,
            "nodes": generation.nodes, "leader": generation.leader, "world_size": generation.world_size,
            "on_hang": str(self._recovery.terms.on_hang), "workers": workers,
            "agent": self._agent, "exclude_stragglers": self._recovery.terms.exclude_stragglers,
            "sections": str(self._history / learning.FILE), "address": generation.address, "port": generation.port,
            "job": f"{self._plan.script}, {generation.world_size} ranks",
        }  # fmt: skip
        self._watcher.send("start", **self._case.start)
        say(words.introduction(generation, self._plan, self._folder.path))
        if generation.number == 0:  # the first words take a fifth of a second, which nobody has when they are needed
            given = {"file": io.StringIO(), "decision": "none"}
            threading.Thread(target=render_verdict, args=(UNJUDGED,), kwargs=given, daemon=True).start()

    def tick(self, look: Look) -> Order | None:
        """Pass on what is new in both directions, and act on a verdict or on the death of workers."""
        current, case = self._generation, self._case
        if current is None:
            return None
        case.look = look
        if look.codes != case.codes:
            case.codes = dict(look.codes)
            self._watcher.send("exits", codes={str(rank): code for rank, code in look.codes.items()})
        self._relay(current, case)
        for answer in self._watcher.answers():
            order = self._hear(answer, current, case)
            if order is not None:
                return order
        self._miss_watcher(case)
        return self._look_after_failure(current, case)

    def decided(self, order: Order) -> None:
        """Note what all nodes do now; the node that proposed it has printed the verdict already."""
        message = msgspec.json.decode(order.payload, type=Message)
        incident = message.incident
        self._incidents.append(incident)
        self._recovery.take(message.entry, incident.folder)
        if order.payload != self._case.payload:
            what = incident.verdict.root.message if incident.verdict.root else "workers died"
            say(f"another node decided: {what}; {order.reason}")

    def ended(self, how: End) -> None:
        """Bring the boxes where they belong."""
        self._watcher.send("stop")
        if how is End.FAILED:
            place = self._case.folder or self._folder.new_incident()
            trouble = self._folder.keep_boxes(place / "boxes")
        elif how is End.INTERRUPTED:
            trouble = self._folder.keep_boxes(self._folder.path / "interrupted")
        else:
            trouble = ""
            self._folder.clear_boxes()
        if trouble:
            say(f"the boxes could not be kept: {trouble}")
        self._generation = None

    def note(self, text: str) -> None:
        """One line for people."""
        say(text)

    def room(self) -> tuple[int, int] | None:
        """What of this host's memory is left to spare processes, in bytes, and all of it."""
        seen = memory.look(Place())
        return None if seen.room is None or seen.whole is None else (seen.room, seen.whole)

    def abandon(self) -> None:
        """Leave no process and no box behind, without any wait."""
        self._watcher.kill()
        self._recordings.close()
        self._folder.close()

    # Between watcher and nodes

    def _relay(self, current: Generation, case: _Case) -> None:
        if current.leader and current.nodes > 1 and time.monotonic() > case.relayed_at + RELAY_EVERY_S:
            case.relayed_at = time.monotonic()
            self._send_summaries(current)

    def _send_summaries(self, current: Generation) -> None:
        summaries = current.board.read("summary")
        if summaries:
            self._watcher.send("summaries", blobs={str(node): blob for node, blob in summaries.items()})

    def _hear(self, answer: Mapping[str, Any], current: Generation, case: _Case) -> Order | None:
        kind = answer.get("kind")
        if kind == "note":
            say(str(answer["text"]))
        elif kind == "warning":
            self._alerts.tell(of_warning(int(answer["rank"]), str(answer["about"]), str(answer["text"])))
        elif kind == "summary":
            current.board.post("summary", str(answer["blob"]))
        elif kind == "verdict" and answer["generation"] == current.number and not _is_over(answer, current, case.look):
            verdict = msgspec.convert(answer["verdict"], Verdict)
            return self._act(verdict, answer, current, case)
        return None

    def _miss_watcher(self, case: _Case) -> None:
        """A watcher that is gone is replaced, until that has happened too often."""
        if self._watcher.alive or self._watchers_left == 0:
            return
        self._watchers_left -= 1
        status, where = self._watcher.status, self._folder.path / "watcher.log"
        if self._watchers_left == 0:
            say(f"the watcher ended again (status {status}, see {where}); the job goes on without one")
            return
        say(f"the watcher ended (status {status}, see {where}); another one takes its place")
        self._watcher = self._watcher.again()
        self._watcher.send("start", **case.start)
        if case.codes:
            self._watcher.send("exits", codes={str(rank): code for rank, code in case.codes.items()})
        case.asked = False

    def _look_after_failure(self, current: Generation, case: _Case) -> Order | None:
        """Workers died here, or another node calls because some died there: ask for a verdict, but not for ever."""
        failed = any(case.codes.values())
        called = current.leader and bool(current.board.read("call"))
        if not failed and not called:
            return None
        now = time.monotonic()
        case.failed_at = case.failed_at or now
        if not case.asked and (current.nodes == 1 or called or now > case.failed_at + SETTLE_S):
            case.asked = True
            if current.leader:
                self._send_summaries(current)
                self._watcher.send("judge")
            else:
                current.board.post("call", "1")
        if not current.leader and not case.alone and now > case.failed_at + LEADER_LIMIT_S:
            case.alone, case.failed_at = True, now  # nobody leads any more: this node judges from what it sees itself
            self._watcher.send("judge")
        limit_s = JUDGE_LIMIT_S if current.leader or case.alone else LEADER_LIMIT_S
        if (current.leader and not self._watcher.alive) or now > case.failed_at + limit_s:
            return self._act(None, {}, current, case)
        return None

    # Acting

    def _act(
        self, verdict: Verdict | None, answer: Mapping[str, Any], current: Generation, case: _Case
    ) -> Order | None:
        hang = bool(answer.get("hang", False))
        entry = self._recovery.decide(verdict, answer, current.number, case.look)
        decision = entry.decision
        incident = Incident(
            generation=current.number, verdict=verdict or UNJUDGED, decision=str(decision.course),
            html=answer.get("html"), folder=answer.get("folder"), detected_s=answer.get("detected_s"),
        )  # fmt: skip
        self._show(incident, decision, hang=hang)
        stops = decision.course is Course.STOP
        self._alerts.tell(
            of_failure(verdict, words.deaths(case.codes), decision.reason, stops=stops, page=incident.html)
        )
        if decision.course is Course.REPORT:
            self._incidents.append(incident)
            self._recovery.take(entry, incident.folder)
            return None
        case.folder = Path(incident.folder) if incident.folder else None
        case.payload = msgspec.json.encode(Message(incident, entry)).decode()
        return Order(
            choice=Choice(decision.course.value), reason=decision.reason, payload=case.payload,
            stuck=(*answer.get("stuck", ()), *answer.get("stopped", ())),
            patience_s=HANG_PATIENCE_S if hang else CRASH_PATIENCE_S if decision.restarts else None,
            excluded=decision.nodes, ranks=decision.ranks,
        )  # fmt: skip

    def _show(self, incident: Incident, decision: Decision, *, hang: bool) -> None:
        verdict = incident.verdict
        if verdict.root is None and not verdict.suspects:
            why = verdict.unseen[0] if verdict.unseen else "no cause could be named"
            say(
                f"{words.deaths(self._case.codes)}; {why}; {decision.reason}"
                + (f"; {incident.html}" if incident.html else "")
            )
            return
        found_s = incident.detected_s if hang else None
        render_verdict(verdict, html=incident.html, decision=decision.reason, elapsed_s=found_s)

    # The end

    def close(self, status: int) -> None:
        """End the watcher, clear shared memory, write the JSON report, and say in one line why the job failed."""
        self._watcher.close()
        self._recordings.close()
        self._folder.close()
        self._keep_history()
        if status != 0 and self._incidents:
            last = self._incidents[-1]
            sentence = last.verdict.root.message if last.verdict.root else "workers died"
            say(f"the job failed: {sentence}" + (f"; {last.html}" if last.html else ""))
        self._recovery.close(status, "" if status == 0 else f"after {plural(len(self._incidents), 'incident')}")
        if self._plan.json_report is not None:
            json_report.write(self._plan.json_report, self._report(status))
        self._alerts.ended(status, sum(each.decision != Course.REPORT for each in self._incidents))

    def _keep_history(self) -> None:
        history = collective_history.read(self._history)
        with suppress(MissingFile):  # a full disk
            if history.troubles:
                self._folder.write(collective_history.FILE, collective_history.kept(history))

    def _report(self, status: int) -> dict[str, Any]:
        verdict = self._incidents[-1].verdict if self._incidents else Verdict(question=QUESTION)
        findings = (verdict.root, *verdict.consequences) if verdict.root is not None else ()
        return json_report.envelope(
            "run", findings, verdict, incidents=self._incidents, status=status, restarts=self._restarts,
            run_dir=str(self._folder.path),
        )  # fmt: skip


def _is_over(answer: Mapping[str, Any], current: Generation, look: Look) -> bool:
    """Whether a hang has ended while it was judged: all workers of the job have."""
    return bool(answer.get("hang")) and current.nodes == 1 and len(look.codes) == len(current.workers)


class _Case:
    """What this node knows and did about the generation that runs."""

    def __init__(self) -> None:
        self.look = Look({})
        self.codes: dict[int, int] = {}
        self.failed_at = 0.0
        self.relayed_at = 0.0
        self.asked = self.alone = False
        self.start: dict[str, Any] = {}
        self.folder: Path | None = None
        self.payload = ""


#: Stands for the verdict that the watcher could not give.
UNJUDGED = Verdict(question=QUESTION, unseen=("the watcher gave no verdict in time",))

"""What a node keeps over the restarts of its workers: the ledger, the adjustments, the wait and gate before a start.

:class:`Recovery` stands between the agent, which knows processes, and the policy, which knows none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast import adjustments, blackbox
from holdfast.actions import past_runs, policy
from holdfast.actions.gate import Gate
from holdfast.actions.ledger import Event, Ledger, Record
from holdfast.actions.policy import Course, Decision, OnHang, Past, Scene, Terms
from holdfast.actions.run_folder import RunFolder
from holdfast.adjustments import Adjustments
from holdfast.errors import HoldfastError, HostUnfit
from holdfast.findings import Verdict
from holdfast.report.text import plural
from holdfast.runtime.generation import Generation, Look

ADJUSTMENTS = "adjustments.json"
#: Restarts that need no policy.
UNDECIDED = 3
#: Failures that a node which joins later is told of.
MOST_TOLD = 64


class Recovery:
    """The memory of one node.

    ``say`` tells people; ``gate`` is None where no check is wanted. ``history`` is a folder that outlives the run.
    """

    def __init__(
        self, folder: RunFolder, terms: Terms, say: Callable[[str], None], gate: Gate | None = None,
        history: Path | None = None,
    ) -> None:  # fmt: skip
        self.terms = terms
        self._folder = folder
        self._say = say
        self._gate = gate
        self._host = os.uname().nodename
        self._history = history
        self._ledger = Ledger(folder.path, history and history / f"{self._host.replace('/', '_')}.jsonl")
        self._told: tuple[Past, ...] = ()
        self._adjustments = adjustments.NONE
        self._delay_s = 0.0
        self._status: int | None = None
        self._begun = time.time()

    @property
    def past(self) -> tuple[Past, ...]:
        """All failures of the job so far: those that this node lived through, after those that it was told of."""
        return (*self._told, *self._ledger.past)

    def begin(self, text: str, *, same: bool = False) -> None:
        """The first line of the ledger, after what earlier runs have left; where ``same``, runs of the same ``text``.

        Raises:
            BadValue: the history cannot be read.
        """
        if self._history is not None:
            earlier = past_runs.unfinished(self._history, text if same else None)
            self._told = past_runs.failures(earlier)
            self._adjust(past_runs.adjusted(earlier))
            if self._told:
                self._say(f"{plural(len(self._told), 'failure')} of earlier runs of this job in {self._history}")
        self._note(Record(event=Event.BEGUN, at=self._begun, host=self._host, text=text))

    # Before workers start

    def prepare(self) -> None:
        """Wait as the policy says, and let this host be looked at.

        Raises:
            HostUnfit: it must not take part.
        """
        delay_s, self._delay_s = self._delay_s, 0.0
        if delay_s:
            time.sleep(delay_s)
        if self._gate is None:
            return
        passing = self._gate.look()
        if not passing.refused:
            return
        claim = passing.refused[0]
        self._note(Record(event=Event.REFUSED, at=time.time(), host=self._host, findings=passing.refused,
                          text=claim.message))  # fmt: skip
        self._status = HostUnfit.exit_status
        raise HostUnfit(self._host, why=f"{claim.message} ({claim.code} {claim.cause})")

    def variables(self) -> dict[str, str]:
        """Where the workers find what they are to do differently."""
        if self._adjustments == adjustments.NONE:
            return {}
        return {"HOLDFAST_ADJUSTMENTS": str((self._folder.path / ADJUSTMENTS).absolute())}

    def started(self, generation: Generation) -> None:
        """Workers run."""
        (self._folder.boxes / blackbox.TEARDOWN).unlink(missing_ok=True)
        changed = self._adjustments if self._adjustments != adjustments.NONE else None
        self._note(Record(
            event=Event.STARTED, at=time.time(), generation=generation.number, host=self._host, nodes=generation.nodes,
            world_size=generation.world_size, ranks=tuple(worker.rank for worker in generation.workers),
            adjustments=changed,
        ))  # fmt: skip

    # After a failure

    def decide(self, verdict: Verdict | None, answer: Mapping[str, Any], generation: int, look: Look) -> Past:
        """The failure that the watcher's ``answer`` describes, and what is to be done about it."""
        failure = policy.failure(
            verdict, at=time.time(), generation=generation, hang=bool(answer.get("hang", False)),
            dead=tuple(sorted(rank for rank, code in look.codes.items() if code)), scene=_scene(answer, look),
        )  # fmt: skip
        try:
            return Past(failure, policy.decide(failure, self.terms, self.past))
        except Exception as error:  # noqa: BLE001 - a bug of the policy must neither end a job nor restart it for ever
            self._say(f"this is a bug of holdfast's policy, please report it: {type(error).__name__}: {error}")
            again = generation < min(self.terms.restarts, UNDECIDED) and self.terms.on_hang is OnHang.RESTART
            return Past(failure, Decision(course=Course.RESTART, reason=f"restart {generation + 1}, undecided",
                                          adjustments=self._adjustments) if again
                        else Decision(course=Course.STOP, reason="stop: the policy cannot decide"))  # fmt: skip

    def take(self, entry: Past, folder: str | None) -> None:
        """Note what all nodes do now, and get ready for it; a decision to do nothing is only noted."""
        failure, decision = entry.failure, entry.decision
        self._note(Record(event=Event.FAILED, at=failure.at, generation=failure.generation, host=self._host,
                          failure=failure, decision=decision, folder=folder))  # fmt: skip
        if decision.course is Course.REPORT:
            return
        self._status, self._delay_s = decision.status, decision.delay_s
        if decision.course is not Course.REPLACE:
            self._teardown()
        if decision.restarts:
            self._adjust(decision.adjustments)
            if self._gate is not None:
                self._gate.begin()

    def _adjust(self, wanted: Adjustments) -> None:
        """Write what the next start does differently; without it the remedy would be lost, not the job."""
        self._adjustments = wanted
        if wanted == adjustments.NONE:
            return
        try:
            self._folder.write(ADJUSTMENTS, adjustments.encode(wanted))
        except HoldfastError as error:
            self._say(f"the next start cannot be told what to do differently: {error}")

    def _teardown(self) -> None:
        """Tell the ranks that a SIGTERM that comes is ours, and no scheduler's warning."""
        try:
            (self._folder.boxes / blackbox.TEARDOWN).touch()
        except OSError:
            return  # they will then save once more, within their time

    # What nodes that join later are told

    def handover(self) -> str:
        """What this node knows of the failures before."""
        kept = [Past(msgspec.structs.replace(each.failure, evidence=()), each.decision) for each in self.past]
        return msgspec.json.encode((kept[-MOST_TOLD:], self._adjustments)).decode()

    def take_over(self, state: str) -> None:
        """Take on what others know, where they have seen more than this node."""
        told, wanted = msgspec.json.decode(state, type=tuple[tuple[Past, ...], Adjustments])
        if len(told) <= len(self.past):
            return
        self._told = told[: len(told) - len(self._ledger.past)]
        self._adjust(wanted)

    # The end

    def status(self, status: int) -> int:
        """The exit status of a job that ended with torchrun's ``status``."""
        return self._status if status != 0 and self._status is not None else status

    def close(self, status: int, text: str) -> None:
        """The last line of the ledger."""
        self._note(Record(event=Event.ENDED, at=time.time(), host=self._host, status=status, text=text))

    def _note(self, record: Record) -> None:
        before = self._ledger.trouble
        self._ledger.add(record)
        if self._ledger.trouble and not before:
            self._say(f"the ledger cannot be written, and goes on in memory: {self._ledger.trouble}")


def _scene(answer: Mapping[str, Any], look: Look) -> Scene:
    seen = answer.get("scene")
    told = Scene() if seen is None else msgspec.convert(seen, Scene, strict=False)
    return msgspec.structs.replace(told, waiting=look.waiting, in_place=look.in_place)

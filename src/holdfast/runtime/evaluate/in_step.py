"""Evaluation of models whose forward communicates (FSDP, DeepSpeed ZeRO-3): all ranks do the same number of forwards.

A rank whose batches are over, or whose loader failed, goes on with a batch that it had before and counts nothing, until
all ranks stop at the same batch: at the agreed number, or where they look around and one of them is in trouble.

What cannot be repaired is an error inside of a forward on some ranks only. Its collectives run in training's groups,
the other ranks are left inside of them, and whatever this rank does next would meet them at the wrong place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from torch.nn import Module

from holdfast.runtime.evaluate.batches import Source
from holdfast.runtime.evaluate.decision import Outcome, Tally
from holdfast.runtime.evaluate.local import Job, Sums, describe, free_memory, tally_of
from holdfast.runtime.evaluate.meeting import Meeting

#: Batches from one look at how the others fare to the next; each costs a small collective in evaluation's group.
LOOK_EVERY = 16


class InStep:
    """Does the work of :func:`holdfast.runtime.evaluate.local.work` in step with the other ranks."""

    def __init__(self, model: Any, meeting: Meeting) -> None:
        self._meeting = meeting
        #: Of the forward at hand. What is no module cannot be watched: it is taken to be inside from first to last.
        self._begun = self._inside = not isinstance(model, Module)
        self._watched = isinstance(model, Module)
        if isinstance(model, Module):
            model.register_forward_pre_hook(self._enter, prepend=True)
            model.register_forward_hook(self._leave)

    def work(self, sources: list[Source], job: Job, before: Outcome, key: str) -> Outcome:
        """As :func:`holdfast.runtime.evaluate.local.work`. ``before``: complete is what is so on all ranks.

        Raises:
            Exception: what the user's function raised inside of a forward, where other ranks did not.
        """
        tallies, trouble = dict(before.tallies), ""
        for source in sources:
            known = tallies.setdefault(source.name, Tally(expected=source.expected, whole=source.whole))
            if known.complete:
                continue
            tally, trouble = self._one(source, job, f"{key}/{source.name}")
            if tally.complete or tally.seen >= known.seen:
                tallies[source.name] = tally
            if trouble:
                break
        if trouble:
            free_memory()
        return Outcome(tallies, trouble)

    def _one(self, source: Source, job: Job, key: str) -> tuple[Tally, str]:
        walk = _Walk(source, job)
        begins = [float(walk.length), float(bool(walk.trouble)), float(not walk.length)]
        agreed = self._meeting.most(f"{key}/rounds", begins, job.deadline)
        rounds = int(agreed[0]) if agreed else 0
        if agreed is None or (rounds and (agreed[1] or agreed[2])):
            empty = "" if walk.length else "it has no batch, and the model's forward needs one on every rank"
            walk.trouble = walk.trouble or empty or "another rank could not begin"
            rounds = 0
        for number in range(1, rounds + 1):
            if not self._forward(walk, f"{key}/{number}/inside", job):
                break
            if number % LOOK_EVERY == 0 or number == rounds:
                over = number < rounds and time.monotonic() > job.deadline
                walk.trouble = walk.trouble or ("its time was over" if over else "")
                if self._meeting.most(f"{key}/{number}", [float(bool(walk.trouble))], job.deadline) != [0.0]:
                    walk.trouble = walk.trouble or "it stopped where another rank did"
                    break
        return tally_of(source, walk.sums, walk.trouble)

    def _forward(self, walk: _Walk, key: str, job: Job) -> bool:
        """One batch, or where it fails before the forward, the one before it; False where all ranks failed inside."""
        for step in (walk.step, walk.stand_in):
            self._begun = self._inside = not self._watched
            try:
                step()
            except Exception as error:
                walk.trouble = walk.trouble or describe(error)
                if not self._inside and self._begun:
                    return True
                if (self._inside or step == walk.stand_in) and not self._together(key, job):
                    raise
                if self._inside:
                    return False
            else:
                return True
        return False

    def _together(self, key: str, job: Job) -> bool:
        """True where every rank failed inside of this very forward: then none is left in it."""
        until = min(max(job.deadline, time.monotonic()), time.monotonic() + self._meeting.grace_s)
        return self._meeting.most(key, [1.0], until) is not None

    def _enter(self, *_: object) -> None:
        self._begun = self._inside = True

    def _leave(self, *_: object) -> None:
        self._inside = False


class _Walk:
    """One dataset on this rank, batch by batch, and what went wrong in it first. ``length`` in batches, at most."""

    def __init__(self, source: Source, job: Job) -> None:
        self.sums, self.trouble, self.length = Sums(), "", 0
        self._job = job
        self._last: Any = None
        self._next: Any = None
        self._batches: Iterator[Any] = iter(())
        try:
            loader = source.loader(job.halvings)
            self.length = source.length(loader, job.halvings)
            self._batches = iter(loader)
            self._last = self._next = next(self._batches, None)
        except Exception as error:  # noqa: BLE001 - told to all ranks
            self.trouble = describe(error)

    def step(self) -> None:
        """Evaluate the next batch; where there is none, or something went wrong before, one that counts nothing."""
        if self.trouble or self._next is None:
            self.stand_in()
            return
        self._last = self._next
        self.sums.add(self._job.metrics(self._job.model, self._last), self._job.samples(self._last))
        self._next = next(self._batches, None)

    def stand_in(self) -> None:
        """A forward for the others' sake."""
        self._job.metrics(self._job.model, self._last)

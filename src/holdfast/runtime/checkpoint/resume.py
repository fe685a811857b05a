"""Which checkpoint a job goes on from: the newest valid one over all places, the same for all ranks.

Rank 0 looks where all ranks share what lies there (the folder of checkpoints, copies), each rank looks into its own
host's memory. Of one step, memory comes first, where all hosts together have every piece (``pieces`` brings them to
each), then the folder, then copies in their order. The ranks share the work of verifying every byte, and of fetching
from afar. What is passed over is said, one sentence each.
"""

from __future__ import annotations

import logging
import shutil
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable, PlaceUnusable
from holdfast.report.text import duration
from holdfast.runtime.checkpoint import neighbours, pieces
from holdfast.runtime.checkpoint.loading import proven, share_of
from holdfast.runtime.checkpoint.pieces import agree_upon, why_of
from holdfast.runtime.checkpoint.places import Folder, Place
from holdfast.runtime.checkpoint.rounds import Round

#: A place that does not say within this time what it has is passed over.
LIST_LIMIT_S = 60.0
_MEMORY, _ROOT = -1, 0
_log = logging.getLogger("holdfast.checkpoint")


class Candidate(msgspec.Struct, frozen=True):
    """One checkpoint in one place: its step, the seal of its manifest, and -1 memory, 0 the folder, 1… the copies."""

    step: int
    seal: str
    place: int


class Part(msgspec.Struct, frozen=True):
    """What a host holds of one checkpoint: the seal of the whole, its number of files, and which of them are here."""

    seal: str
    files: int
    held: tuple[int, ...]


class Seen(msgspec.Struct, frozen=True):
    """What one rank finds in the memory of its host, by step, and whose memory that is."""

    memory: dict[int, Part]
    whose: str


class Choice(msgspec.Struct, frozen=True):
    """What rank 0 makes of it for one rank, which is ``index`` of ``count`` on host ``host`` of ``hosts``."""

    candidates: tuple[Candidate, ...]
    index: int
    count: int
    host: int
    hosts: int


@dataclass
class Search:
    """One search by all ranks: where they look, and how they agree. ``before``: only steps below it."""

    root: Folder
    copies: Sequence[Place]
    memory: Folder | None
    around: Round
    before: int | None = None
    #: One sentence for each checkpoint and place that was passed over (rank 0 knows all of them).
    skipped: list[str] = field(default_factory=list)
    _unreadable: dict[tuple[int, str], str] = field(default_factory=dict)

    def newest(self) -> Path | None:
        """This rank's folder with the newest valid checkpoint, every byte of it verified; None where there is none.

        Raises:
            CheckpointUnreadable: there are some, and all of them are damaged.
            CheckpointFailed: a rank did not come.
        """
        own = Seen(self._in_memory(), f"{socket.gethostname()} {self.memory.path if self.memory else ''}")
        told = self.around.agree("look", msgspec.json.encode(own), self._choices)
        choice = msgspec.json.decode(told, type=Choice)
        for candidate in choice.candidates:
            place = self._place(candidate)
            try:
                return self._taken(candidate, place, choice)
            except CheckpointUnreadable as error:
                self._pass_over(f"step {candidate.step} in {place.name}: {error.why}")
        if choice.candidates:
            what = f"any of the {len(choice.candidates)} checkpoints" if len(choice.candidates) > 1 else "the only one"
            raise CheckpointUnreadable(
                self.root.path, why=f"{what} is damaged, the newest of step {choice.candidates[0].step}",
                next_step="bring back a copy, or move all of them away to begin anew",
            )  # fmt: skip
        return None

    # Looking

    def _in_memory(self) -> dict[int, Part]:
        if self.memory is None:
            return {}
        found = {}
        for step in self.memory.steps():
            if self.before is None or step < self.before:
                try:
                    found[step] = _part(self.memory.folder(step))
                except CheckpointUnreadable as error:
                    self.skipped.append(f"step {step} in memory: {error.why}")
        return found

    def _choices(self, given: list[bytes]) -> list[bytes]:
        """On rank 0: what can be tried, the best first, and who shares a memory with whom."""
        seen = [msgspec.json.decode(each, type=Seen) for each in given]
        held: dict[tuple[int, str, int], set[int]] = {}
        for each in seen:
            for step, part in each.memory.items():
                held.setdefault((step, part.seal, part.files), set()).update(part.held)
        found = [Candidate(step, seal, _MEMORY) for (step, seal, files), here in held.items() if len(here) == files]
        for number, listed in enumerate(self._listed()):
            found += [Candidate(step, seal, number) for step, seal in listed.items()]
        found.sort(key=lambda each: (-each.step, each.place))
        hosts = list(dict.fromkeys(each.whose for each in seen))
        alike = [[rank for rank, other in enumerate(seen) if other.whose == each.whose] for each in seen]
        return [
            msgspec.json.encode(
                Choice(tuple(found), ranks.index(rank), len(ranks), hosts.index(seen[rank].whose), len(hosts))
            )
            for rank, ranks in enumerate(alike)
        ]

    def _listed(self) -> list[dict[int, str]]:
        """What the folder and each of the copies have. A place that hangs does not make the others wait."""
        places = [self.root, *self.copies]
        found: list[dict[int, str]] = [{} for _ in places]
        said: list[str] = [f"{place.name}: it did not answer within {duration(LIST_LIMIT_S)}" for place in places]
        threads = []
        for number, place in enumerate(places):

            def look(number: int = number, place: Place = place) -> None:
                try:
                    found[number], said[number] = self._steps_in(place), ""
                except Exception as error:  # noqa: BLE001 - whatever a place does, the others count
                    said[number] = f"{place.name}: {why_of(error)}"

            threads.append(threading.Thread(target=look, name=f"holdfast look {place.name}", daemon=True))
            threads[-1].start()
        for thread in threads:
            thread.join(LIST_LIMIT_S)
        for sentence in filter(None, said):
            self._pass_over(sentence)
        return [dict(each) for each in found]

    def _steps_in(self, place: Place) -> dict[int, str]:
        found = {}
        for step in place.steps():
            if self.before is not None and step >= self.before:
                continue
            try:
                found[step] = place.manifest(step).seal
            except CheckpointUnreadable as error:
                if isinstance(place, Folder):  # it had one when it got its name
                    found[step], self._unreadable[step, place.name] = "", error.why
                else:
                    self._pass_over(f"step {step} in {place.name}: {error.why}")
        return found

    # Taking

    def _place(self, candidate: Candidate) -> Place:
        if candidate.place == _MEMORY and self.memory is not None:
            return self.memory
        return self.root if candidate.place <= _ROOT else self.copies[candidate.place - 1]

    def _taken(self, candidate: Candidate, place: Place, choice: Choice) -> Path:
        if not candidate.seal:
            raise CheckpointUnreadable(place.name, why=self._unreadable.get((candidate.step, place.name)))
        if candidate.place == _MEMORY and self.memory is not None:
            here = pieces.Here(self.memory, candidate.step, candidate.seal, choice.index, choice.count, choice.host)
            return pieces.taken(here, self.around, alone=choice.hosts == 1)
        if isinstance(place, Folder):
            folder = place.folder(candidate.step)
            proven(folder, self.around)
            return folder
        return self._fetched(candidate, place)

    def _fetched(self, candidate: Candidate, place: Place) -> Path:
        """Bring it into the folder of checkpoints, each rank its share of the files."""
        name = self.around.agree("stage", b"", lambda _: self._stage(candidate.step))
        staged = self.root.path / name.decode()
        _log.info("fetching the checkpoint of step %s from %s", candidate.step, place.name)

        def fetch() -> None:
            found = place.manifest(candidate.step)
            for entry in share_of(found, self.around.rank, self.around.world).files:
                place.fetch(found, entry, staged)

        try:
            agree_upon(fetch, self.around, self.root.path)
            self.around.agree("declare", b"", lambda _: self._declare(staged, candidate, place))
        finally:
            if self.around.rank == 0:
                shutil.rmtree(staged, ignore_errors=True)
        return self.root.folder(candidate.step)

    def _stage(self, step: int) -> bytes:
        return self.root.staged("fetch", step).name.encode()

    def _declare(self, staged: Path, candidate: Candidate, place: Place) -> bytes:
        self.root.declare(staged, place.manifest(candidate.step))
        return b""

    def _pass_over(self, sentence: str) -> None:
        self.skipped.append(sentence)
        if self.around.rank == 0:
            _log.warning("passed over: %s", sentence)


def set_aside(place: Place, before: int) -> list[str]:
    """Let no checkpoint of a place from step ``before`` on be found again; one sentence for each."""
    said = []
    for step in place.steps():
        if step >= before:
            try:
                place.set_aside(step)
                said.append(f"step {step} in {place.name} was set aside")
            except PlaceUnusable as error:
                said.append(f"step {step} in {place.name} could not be set aside: {error.why}")
    return said


def _part(folder: Path) -> Part:
    """What a folder in memory holds. Raises CheckpointUnreadable."""
    whole, here = neighbours.whole(folder), {entry.path for entry in manifest.read(folder).files}
    held = tuple(number for number, entry in enumerate(whole.files) if entry.path in here)
    return Part(whole.seal, len(whole.files), held)

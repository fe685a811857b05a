"""The copy at the endpoint: waits for the others, has everyone look at everyone, and tells all of them the outcome."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from holdfast import __version__
from holdfast.facts.reach import Approach, Clock, Crossing, Fate, Gathered, Link, Naming, Present, Stranger
from holdfast.facts.reach.doors import listener
from holdfast.facts.reach.frames import Wire, greet, plain, welcome
from holdfast.facts.reach.member import Member
from holdfast.facts.reach.messages import (
    FromLeader,
    Join,
    Measure,
    Measured,
    Meet,
    Met,
    MyClock,
    Outcome,
    Report,
    Reported,
    Roster,
    TellClock,
    ToLeader,
    Waiting,
    Welcome,
    encode,
    joined,
    to_leader,
)  # fmt: skip
from holdfast.tournament import pairs, rounds

#: After copies that contradict each other, how long the rest is waited for.
GRACE_S = 1.0
#: Time for one connection without an answer and one large message that stalls, for reports, and for all rounds.
MEET_LIMIT_S = 8.0
REPORT_LIMIT_S = 9.0
ROUNDS_LIMIT_S = 8.0
ROUND_LIMIT_S = 9.0
_CLOCK_LIMIT_S = 1.0
_PINGS = 10
#: Copies that are taken for each node that is expected: started twice, or come again, is told; more is noise.
_MOST_FOR_EACH = 8
_GOODBYE_S = 2.0
_SAY_LIMIT_S = 5.0
#: So often is looked whether the own copy has come, which needs no network.
_OWN_S = 0.1
#: Clocks are asked for in groups of so many.
_CLOCKS_AT_ONCE = 8
_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class Entry:
    """One copy that came: its connection, what it said first, and its answers by kind."""

    def __init__(self, wire: Wire, join: Join, *, leads: bool) -> None:
        self.wire, self.join, self.leads = wire, join, leads
        self.number = 0
        self.lost = ""
        self._answers: dict[type, asyncio.Queue[Any]] = {}
        self.closed = asyncio.Event()

    def answers(self, kind: type[_Answer]) -> asyncio.Queue[_Answer]:
        """Where answers of this kind arrive."""
        return self._answers.setdefault(kind, asyncio.Queue())

    async def say(self, message: FromLeader) -> None:
        """Send, and note where it cannot be: one that stands still must not hold up the others."""
        try:
            async with asyncio.timeout(_SAY_LIMIT_S):
                await self.wire.send(encode(message))
        except TimeoutError:
            self.lost = self.lost or f"it took nothing for {_SAY_LIMIT_S:g} s"
        except OSError as error:
            self.lost = self.lost or f"the connection was lost: {error.strerror or error}"

    async def ask(self, message: FromLeader, kind: type[_Answer], limit_s: float) -> _Answer | None:
        """Its answer, or None where it gives none in time."""
        if self.lost:
            return None
        await self.say(message)
        try:
            async with asyncio.timeout(limit_s):
                return await self.answers(kind).get()
        except TimeoutError:
            return None


class Leader:
    """Leads a meeting of ``nodes`` copies with one ``key``. ``judge`` makes of what was gathered what all are told."""

    def __init__(self, key: bytes, name: str, nodes: int, judge: Callable[[Gathered], bytes]) -> None:
        self._key, self._name, self._nodes, self._judge = key, name, nodes, judge
        self._entries: dict[str, Entry] = {}
        self._strangers: set[Stranger] = set()
        self._changed = asyncio.Event()
        self._word = secrets.token_hex(16)
        self._closed = False
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def others(self) -> int:
        """How many came beside the own copy."""
        return sum(not entry.leads for entry in self._entries.values())

    async def listen(self, port: int) -> str:
        """Take those who come to this port: ``listening``, or why that is not possible."""
        try:
            self._servers.append(await asyncio.start_server(self._serve, sock=listener(port)))
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
        return "listening"

    def close(self) -> None:
        """Listen no longer."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()

    async def lead(self, own: Member, begun: float, wait_s: float) -> tuple[Gathered, bytes]:
        """Wait for the others until ``wait_s`` after ``begun`` (monotonic); then look, judge, and tell everyone."""
        here, there = socket.socketpair()
        self._start(self._serve(*await asyncio.open_connection(sock=there), leads=True))
        follows = self._start(self._follow(own, here))
        beats = self._start(self._beat())
        await self._all(max(begun + wait_s - time.monotonic(), 0))
        waited = time.monotonic() - begun
        present = self._number()
        gathered = await self._look(present, round(waited, 2))
        content = self._judge(gathered)
        await self._part(content)
        beats.cancel()
        with suppress(asyncio.CancelledError):
            await follows
        return gathered, content

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _follow(self, own: Member, end: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=end)
        with suppress(OSError, EOFError):
            wire = await greet(reader, writer, self._key)
            await wire.receive()
            await own.follow(wire)

    # ---- those who come

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, leads: bool = False) -> None:
        entry = None
        try:
            wire = await welcome(reader, writer, self._key)
            await wire.send(encode(Welcome(self._name, __version__)))
            join = joined(await wire.receive())
            if len(self._entries) + len(self._strangers) >= _MOST_FOR_EACH * self._nodes:
                return
            if isinstance(join, Stranger):
                self._strangers.add(join)
                self._changed.set()
                return
            entry = Entry(wire, join, leads=leads)
            self._entries[join.copy.key] = entry
            self._changed.set()
            while True:
                answer: ToLeader = to_leader.decode(await wire.receive())
                entry.answers(type(answer)).put_nowait(answer)
        except (OSError, EOFError, TimeoutError, msgspec.DecodeError, asyncio.CancelledError) as error:
            if entry is not None:
                entry.lost = entry.lost or f"its connection was lost: {str(error) or 'it was closed'}"
        finally:
            if entry is not None:
                entry.closed.set()
                self._changed.set()
            writer.close()

    async def _all(self, wait_s: float) -> None:
        """Until every node is there, or some contradict each other, or the time is over; the own copy always comes."""
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        clashed = False
        while loop.time() < until or not any(entry.leads for entry in self._entries.values()):
            copies = [entry.join.copy for entry in self._entries.values() if not entry.lost]
            nodes = [copy.node for copy in copies if copy.node is not None]
            clash = len(nodes) != len(set(nodes)) or any(copy.nodes != self._nodes for copy in copies)
            if not clash and len(copies) + len(self._strangers) >= self._nodes:
                return
            if clash and not clashed:
                clashed, until = True, min(until, loop.time() + GRACE_S)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(max(until, loop.time() + _OWN_S)):
                    await self._changed.wait()

    async def _beat(self) -> None:
        while True:
            for entry in list(self._entries.values()):
                if not entry.lost:
                    await entry.say(Waiting(len(self._entries), self._nodes))
            await asyncio.sleep(1)

    def _number(self) -> list[Entry]:
        """Who is here takes part, in the order of the nodes; who comes later is told the outcome alone."""
        here = [entry for entry in self._entries.values() if not entry.lost]
        here.sort(key=lambda entry: (entry.join.copy.node is None, entry.join.copy.node or 0, not entry.leads,
                                     entry.join.copy.host, entry.join.copy.key))  # fmt: skip
        for number, entry in enumerate(here):
            entry.number = number
        return here

    # ---- what they see

    async def _look(self, here: list[Entry], waited_s: float) -> Gathered:
        present = tuple(_present(entry) for entry in here)
        brief = tuple(_brief(each) for each in present)
        await asyncio.gather(*(entry.say(Roster(self._word, entry.number, brief)) for entry in here))
        gathered = Gathered(
            nodes=self._nodes, waited_s=waited_s, present=present,
            strangers=tuple(sorted(self._strangers, key=lambda each: each.label)),
        )  # fmt: skip
        clocks = await self._clocks(here)
        reporting = [asyncio.ensure_future(entry.ask(Report(), Reported, REPORT_LIMIT_S)) for entry in here]
        met = await asyncio.gather(*(self._met(entry, len(here)) for entry in here))
        for task, told in zip(reporting, met, strict=True):
            if told is None and not task.done():  # who did not answer this will not answer that
                task.cancel()
        await asyncio.wait(reporting)
        done = [None if task.cancelled() else task.result() for task in reporting]
        reports = {entry.number: told.report for entry, told in zip(here, done, strict=True) if told}
        crossings = tuple(crossing for each in met if each for crossing in each.crossings)
        open_ways = _open_ways(met, crossings, len(here))
        for entry, told in zip(here, met, strict=True):
            if told is None:
                entry.lost = entry.lost or f"it did not tell whom it reached within {MEET_LIMIT_S:g} s"
        links, made, left = await self._measure(here, open_ways)
        lost = {entry.number: entry.lost for entry in here if entry.lost}
        return msgspec.structs.replace(
            gathered, crossings=crossings, tried=sum(each.tried for each in met if each), namings=_namings(met),
            links=links, clocks=clocks, reports=reports, lost=lost, rounds=made, unmeasured=left,
        )  # fmt: skip

    async def _met(self, entry: Entry, size: int) -> Met | None:
        """Whom it reached; what it tells of others than itself, or of nobody who is here, does not count."""
        told = await entry.ask(Meet(), Met, MEET_LIMIT_S)
        if told is None:
            return None
        sound = range(size)
        crossings = tuple(each for each in told.crossings if each.source == entry.number and each.target in sound)
        namings = tuple(each for each in told.namings if each.source == entry.number and each.target in sound)
        return msgspec.structs.replace(told, crossings=crossings, namings=namings)

    async def _clocks(self, here: list[Entry]) -> tuple[Clock, ...]:
        found: list[Clock | None] = []
        for at in range(0, len(here), _CLOCKS_AT_ONCE):
            found += await asyncio.gather(*(self._clock(entry) for entry in here[at : at + _CLOCKS_AT_ONCE]))
        return tuple(filter(None, found))

    async def _clock(self, entry: Entry) -> Clock | None:
        """Christian's algorithm: of several exchanges the quickest counts, and half of what it took is its error."""
        best: Clock | None = None
        for _ in range(_PINGS):
            asked, begun = time.time(), time.perf_counter()
            told = await entry.ask(TellClock(), MyClock, _CLOCK_LIMIT_S)
            if told is None:
                break
            half = (time.perf_counter() - begun) / 2
            if best is None or half < best.within_s:
                best = Clock(entry.number, told.time - asked - half, half)
        return best

    async def _measure(self, here: list[Entry], ways: dict[tuple[int, int], bool]) -> tuple[tuple[Link, ...], int, int]:
        """The tournament over pairs that reach each other: links, rounds made, pairs for which time was short."""
        until = asyncio.get_running_loop().time() + ROUNDS_LIMIT_S
        links: list[Link] = []
        total = rounds(len(here))
        for number in range(total):
            drawn = list(pairs(len(here), number))
            fit = [next((way for way in (pair, pair[::-1]) if ways[way]), None) for pair in drawn]
            if asyncio.get_running_loop().time() > until:
                return tuple(links), number, sum(len(list(pairs(len(here), at))) for at in range(number, total))
            told = await asyncio.gather(
                *(here[source].ask(Measure(target), Measured, ROUND_LIMIT_S) for source, target in filter(None, fit))
            )
            asked = zip(filter(None, fit), told, strict=True)
            links += [each.link for way, each in asked if each and (each.link.source, each.link.target) == way]
        return tuple(links), total, 0

    # ---- the end

    async def _part(self, content: bytes) -> None:
        """Tell everyone the outcome, also those who came too late, and see that they have it."""
        entries = [entry for entry in self._entries.values() if not entry.closed.is_set()]
        await asyncio.gather(*(entry.say(Outcome(content)) for entry in entries))
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_S):
                await asyncio.gather(*(entry.closed.wait() for entry in entries if not entry.lost))


def _present(entry: Entry) -> Present:
    join = entry.join
    seen_as = "" if entry.leads else plain(entry.wire.peer)
    return Present(
        number=entry.number, copy=join.copy, approach=join.approach, seen_as=seen_as,
        door=join.door, ranged=join.ranged, leads=entry.leads,
    )  # fmt: skip


def _brief(present: Present) -> Present:
    """What the others have to know of it."""
    approach = Approach(host="", port=0, addresses=())
    return msgspec.structs.replace(
        present, approach=approach, copy=msgspec.structs.replace(present.copy, interfaces=(), names=())
    )


def _open_ways(met: list[Met | None], failed: tuple[Crossing, ...], size: int) -> dict[tuple[int, int], bool]:
    """From whom to whom a link can be measured: where connections open, and large messages pass both ways."""
    ways = {
        (source, target): met[source] is not None and met[target] is not None
        for source in range(size)
        for target in range(size)
    }
    for each in failed:
        if each.purpose == "data":
            ways[each.source, each.target] = False
            if each.attempt.fate is Fate.STALLED:
                ways[each.target, each.source] = False
    return ways


def _namings(met: list[Met | None]) -> tuple[Naming, ...]:
    return tuple(naming for each in met if each for naming in each.namings)

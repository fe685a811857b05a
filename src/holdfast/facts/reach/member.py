"""A copy that came to the meeting: does what whoever leads asks for, and ends with the outcome that all share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from holdfast.facts.reach import Approach, Copy, Crossing, Fate, HostReport, Link, Naming, Present
from holdfast.facts.reach.addresses import is_loopback
from holdfast.facts.reach.doors import Doors, measure, reach
from holdfast.facts.reach.frames import Wire
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
    encode,
    from_leader,
)  # fmt: skip
from holdfast.facts.reach.names import meaning
from holdfast.findings import Unknown

#: Whoever leads gives a sign of life each second.
SILENCE_LIMIT_S = 6.0
_AT_ONCE = 256
#: With more hosts than this, the ports of the range are not tried on all of them, nor all names asked.
_FEW = 64


class Member:
    """One copy in the meeting. ``now`` is its clock."""

    def __init__(
        self, copy: Copy, approach: Approach, doors: Doors,
        report: Callable[[], Awaitable[HostReport]], now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._copy, self._approach, self._doors, self._report, self._now = copy, approach, doors, report, now
        self._roster = Roster("", 0, ())
        self._under_way: set[asyncio.Task[None]] = set()
        self._leader = ""

    async def follow(self, wire: Wire) -> bytes | Unknown:
        """Take part until the outcome is there; Unknown where whoever leads fell silent before."""
        self._leader = wire.peer
        try:
            await wire.send(encode(Join(self._copy, self._approach, self._doors.door, self._doors.ranged)))
            while True:
                async with asyncio.timeout(SILENCE_LIMIT_S):
                    message = from_leader.decode(await wire.receive())
                if isinstance(message, Outcome):
                    return message.content
                await self._heed(message, wire)
        except TimeoutError:
            return Unknown(f"whoever leads said nothing for {SILENCE_LIMIT_S:g} s")
        except (OSError, EOFError, msgspec.DecodeError) as error:
            return Unknown(f"the connection to whoever leads was lost: {str(error) or 'it was closed'}")
        finally:
            for task in self._under_way:
                task.cancel()
            wire.close()

    async def _heed(self, message: FromLeader, wire: Wire) -> None:
        if isinstance(message, TellClock):
            await wire.send(encode(MyClock(self._now())))
        elif isinstance(message, Roster):
            self._roster = message
            self._doors.expect(message.word, message.number)
        elif isinstance(message, Meet | Report | Measure):
            task = asyncio.ensure_future(self._do(message, wire))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _do(self, message: Meet | Report | Measure, wire: Wire) -> None:
        answer: ToLeader
        if isinstance(message, Meet):
            answer = await self._meet()
        elif isinstance(message, Report):
            answer = Reported(await self._report())
        else:
            answer = Measured(await self._measure(message.target))
        with suppress(OSError):
            await wire.send(encode(answer))

    async def _meet(self) -> Met:
        others = [each for each in self._roster.present if each.number != self._roster.number]
        free = asyncio.Semaphore(_AT_ONCE)

        async def cross(target: int, purpose: str, address: str, port: int) -> Crossing:
            async with free:
                attempt = await reach(self._roster.word, target, address, port, large=purpose != "range")
            return Crossing(source=self._roster.number, target=target, purpose=purpose, attempt=attempt)

        few = len(others) < _FEW
        ways = [(each.number, *way) for each in others for way in self._ways(each, ranged=few)]
        asked = asyncio.ensure_future(self._names(others if few else others[:1]))
        crossings = await asyncio.gather(*(cross(*way) for way in ways))
        namings = await asked
        failed = tuple(each for each in crossings if each.attempt.fate is not Fate.OPEN)
        return Met(failed, len(crossings), namings)

    def _ways(self, other: Present, *, ranged: bool) -> list[tuple[str, str, int]]:
        """Purpose, address and port of all that is tried of another copy."""
        address = self._address(other)
        ways = [("data", address, other.door)]
        for each in other.copy.published:
            if isinstance(each.address, Unknown) or each.address in {way[1] for way in ways}:
                continue
            if not is_loopback(each.address) or other.copy.machine == self._copy.machine:
                ways.append((each.who, each.address, other.door))
        return ways + [("range", address, port) for port in other.ranged if ranged]

    def _address(self, other: Present) -> str:
        """Where another copy is met: whence it came, and of whoever leads, where this copy went."""
        return other.seen_as or self._leader

    async def _names(self, others: list[Present]) -> tuple[Naming, ...]:
        meant = await meaning(each.copy.name for each in others)
        return tuple(
            Naming(source=self._roster.number, target=each.number, name=each.copy.name, addresses=meant[each.copy.name])
            for each in others
            if each.copy.name in meant
        )

    async def _measure(self, target: int) -> Link:
        found = next((each for each in self._roster.present if each.number == target), None)
        if found is None:
            return Link(source=self._roster.number, target=target, fate=Fate.FAILED, detail="no such copy")
        return await measure(self._roster.word, self._roster.number, target, self._address(found), found.door)

"""How a copy gets to the meeting: what the endpoint's name means, whose address it is, who listens there.

The copy with node rank 0 leads, or, where no rank was given, the one whose address it is. It listens at the endpoint
and at some side doors that follow from it: a copy that gets in there alone lets both sides know that the endpoint's
own port is blocked or taken. A copy that owns the endpoint's address and finds nobody there leads in place of node 0;
so the copies meet also where the endpoint is the address of the wrong host.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast import __version__
from holdfast.facts.environment import LEFT_OUT, matters, without_secret
from holdfast.facts.reach import Approach, Attempt, Copy, Fate, Gathered, HostReport, NotUnderstood
from holdfast.facts.reach.addresses import interface_of, interfaces, is_own, published, source_to
from holdfast.facts.reach.connecting import CONNECT_LIMIT_S, connect
from holdfast.facts.reach.doors import Doors
from holdfast.facts.reach.frames import NotOurs, OtherKey, Wire, greet, key_of
from holdfast.facts.reach.leader import Leader
from holdfast.facts.reach.member import Member
from holdfast.facts.reach.messages import Welcome, from_leader
from holdfast.facts.reach.names import meaning
from holdfast.findings import Unknown

#: A name that is not known yet may become known: pods of one job start together.
NAME_LIMIT_S = 3.0
#: For so long the owner of the endpoint's address leaves it to node 0 to listen there.
DEFER_S = 1.5
_AGAIN_S = 0.25
_Told = TypeVar("_Told")
_DEVICES = ("/dev/nvidiactl", "/dev/kfd")


class Muster(msgspec.Struct, frozen=True, kw_only=True):
    """What a copy is told: the endpoint, its place, for how long it waits, and the job's port range."""

    host: str
    port: int
    nodes: int
    node: int | None = None
    wait_s: float = 10.0
    token: str = ""
    ports: tuple[int, int] = (29500, 29510)
    environ: dict[str, str] = {}
    names: tuple[str, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it went for one copy. ``content``: what all were told; Unknown where this one is on its own, and why.

    ``version``: that of holdfast with whoever leads, where it was heard.
    """

    copy: Copy
    approach: Approach
    content: bytes | Unknown
    gathered: Gathered | None = None
    version: str = ""

    def told(self, kind: type[_Told]) -> _Told | Unknown:
        """What all were told; Unknown also where whoever leads made something else of it."""
        if isinstance(self.content, Unknown):
            return self.content
        try:
            return msgspec.json.decode(self.content, type=kind)
        except msgspec.DecodeError as error:
            return NotUnderstood(f"what whoever leads tells cannot be read: {error}", self.version)


def side_doors(port: int, ports: tuple[int, int]) -> tuple[int, ...]:
    """Other ports for the meeting: the last of the range, one below and one among those given to connections."""
    digest = hashlib.sha256(f"holdfast side doors {port}".encode()).digest()
    low, high = (int.from_bytes(digest[at : at + 2], "big") % 10_000 for at in (0, 2))
    return tuple(each for each in (ports[1], 20_000 + low, 40_000 + high) if each != port)


async def meet(
    muster: Muster, report: Callable[[], Awaitable[HostReport]], judge: Callable[[Gathered], bytes],
    now: Callable[[], float] = time.time,
) -> Outcome:  # fmt: skip
    """Find the others, take part, and return with what all were told, or with how far this copy came.

    Raises:
        OSError: this host does not let us listen at any port.
    """
    until = time.monotonic() + muster.wait_s
    copy, approach = await _look_around(muster)
    doors = await Doors.open(_ranged(muster))
    try:
        return await _Way(muster, copy, approach, until).go(doors, report, judge, now)
    finally:
        doors.close()
        await asyncio.sleep(0.01)  # closed connections are let go of in the loop's next turns


def _ranged(muster: Muster) -> list[int]:
    taken = {muster.port, *side_doors(muster.port, muster.ports)}
    return [port for port in range(muster.ports[0], muster.ports[1] + 1) if port not in taken]


async def _look_around(muster: Muster) -> tuple[Copy, Approach]:
    """This host, and what can be told of the endpoint before anything is sent."""
    known, own_name = interfaces(), socket.gethostname()
    begun = time.monotonic()
    meant = await meaning((muster.host, own_name))
    while isinstance(meant[muster.host], Unknown) and time.monotonic() - begun < min(NAME_LIMIT_S, muster.wait_s):
        await asyncio.sleep(_AGAIN_S)
        meant |= await meaning((muster.host,))
    addresses = meant[muster.host]
    source = "" if isinstance(addresses, Unknown) else source_to(addresses[0])
    copy = Copy(
        key=secrets.token_hex(8), node=muster.node, nodes=muster.nodes, host=own_name,
        name=await asyncio.to_thread(_full_name, meant[own_name]), machine=_machine(), version=__version__,
        endpoint=f"{muster.host}:{muster.port}", interfaces=known,
        published=published(muster.environ, known, meant[own_name]), devices=_devices(),
        names=muster.names,
    )  # fmt: skip
    approach = Approach(
        host=muster.host, port=muster.port, addresses=addresses, resolve_s=round(time.monotonic() - begun, 3),
        owned=not isinstance(addresses, Unknown) and is_own(addresses[0]), source=source,
        interface=interface_of(source, known),
    )  # fmt: skip
    return copy, approach


def _full_name(meant: tuple[str, ...] | Unknown) -> str:
    """What torchrun's c10d gives to the others; not asked for where the own name has no meaning, as that takes long."""
    return socket.gethostname() if isinstance(meant, Unknown) else socket.getfqdn()


def _devices() -> bool:
    return any(Path(each).exists() for each in _DEVICES)


def _machine() -> str:
    """Equal for two processes that share a kernel and its network."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"  # noqa: PTH116 - a name of the kernel's, no file
    return secrets.token_hex(8)


class _Way:
    """One copy's way to the meeting."""

    def __init__(self, muster: Muster, copy: Copy, approach: Approach, until: float) -> None:
        self._muster, self._copy, self._approach, self._until = muster, copy, approach, until
        self._key = key_of(muster.port, muster.token)
        self._sides = side_doors(muster.port, muster.ports)
        self._alone_since: float | None = None
        self._version = ""

    @property
    def _address(self) -> str:
        return "" if isinstance(self._approach.addresses, Unknown) else self._approach.addresses[0]

    async def go(
        self, doors: Doors, report: Callable[[], Awaitable[HostReport]], judge: Callable[[Gathered], bytes],
        now: Callable[[], float],
    ) -> Outcome:  # fmt: skip
        """Lead or follow, whichever it comes to."""
        if self._muster.node == 0 or (self._muster.node is None and self._approach.owned):
            leader, wire = await self._stand(judge)
        else:
            leader, wire = None, await self._seek()
            if wire is None and self._alone_since is not None:
                leader, wire = await self._stand(judge)
        member = Member(self._copy, self._approach, doors, report, now)
        if wire is not None:
            if leader is not None:
                leader.close()
            return self._outcome(await member.follow(wire))
        if leader is None:
            return self._outcome(Unknown(f"nobody who leads was reached within {self._muster.wait_s:g} s"))
        try:
            gathered, content = await leader.lead(member, self._until - self._muster.wait_s, self._muster.wait_s)
        finally:
            leader.close()
        return replace(self._outcome(content), gathered=gathered)

    def _outcome(self, content: bytes | Unknown) -> Outcome:
        if isinstance(content, Unknown) and self._version not in ("", __version__):
            content = NotUnderstood(content.why, self._version)
        return Outcome(copy=self._copy, approach=self._approach, content=content, version=self._version)

    async def _stand(self, judge: Callable[[Gathered], bytes]) -> tuple[Leader | None, Wire | None]:
        """Listen; but where another copy leads at the endpoint already, go to that one."""
        leader = Leader(self._key, self._copy.key, self._muster.nodes, judge)
        bound = await leader.listen(self._muster.port)
        self._approach = replace(self._approach, bound=bound)
        if bound != "listening" or not self._approach.owned:
            wire = await self._elsewhere(leader)
            if wire is not None:
                return leader, wire
        for port in self._sides:
            await leader.listen(port)
        return leader, None

    async def _elsewhere(self, leader: Leader) -> Wire | None:
        """Who else leads at the endpoint, where this copy cannot listen there or has not its address."""
        if not self._address:
            return None
        # Its owner leaves it to node 0 for a while, so that it answers only after that.
        until = time.monotonic() + (0 if self._approach.bound != "listening" else DEFER_S + 1.5)
        while True:
            wire, attempt = await self._knock(self._address, self._muster.port)
            self._approach = replace(self._approach, main=attempt)
            if wire is not None or attempt.fate is not Fate.REFUSED or time.monotonic() > until or leader.others:
                return wire
            await asyncio.sleep(_AGAIN_S)

    async def _seek(self) -> Wire | None:
        """Go to the endpoint until somebody leads there; None where nobody does, or this copy has to."""
        if not self._address:
            return None
        refused_since: float | None = None
        while True:
            wire, main, side = await self._round()
            if main.fate is not Fate.REFUSED or not _telling(self._approach.main):
                self._approach = replace(self._approach, main=main, side=side)
            if wire is not None:
                return wire
            nobody = main.fate is Fate.REFUSED and self._approach.owned
            refused_since = (refused_since or time.monotonic()) if nobody else None
            if refused_since is not None and time.monotonic() - refused_since > DEFER_S:
                self._alone_since = refused_since
                return None
            slow = CONNECT_LIMIT_S if main.elapsed_s > 1 else 0.0  # a round that could not end in time is not begun
            if (
                time.monotonic() + slow > self._until or main.fate is Fate.NO_ROUTE
            ):  # a way that is lacking stays lacking
                return None
            await asyncio.sleep(_AGAIN_S)

    async def _round(self) -> tuple[Wire | None, Attempt, tuple[Attempt, ...]]:
        """The endpoint and its side doors at once. Where only a side door opens, the endpoint is tried once more."""
        main = asyncio.ensure_future(self._knock(self._address, self._muster.port))
        sides = [asyncio.ensure_future(self._knock(self._address, port)) for port in self._sides]
        chosen: Wire | None = None
        try:
            await asyncio.wait([main, *sides], return_when=asyncio.FIRST_COMPLETED)
            if main.done() and main.result()[0] is not None:
                chosen, attempt = main.result()
                return chosen, attempt, ()
            found = await asyncio.gather(*sides)
            chosen, attempt = await main
            aside = next((wire for wire, _ in found if wire is not None), None)
            if chosen is None and aside is not None and attempt.fate is not Fate.SILENT:
                chosen, attempt = await self._knock(self._address, self._muster.port)
            chosen = chosen or aside
            return chosen, attempt, tuple(each for _, each in found)
        finally:
            for task in (main, *sides):
                task.add_done_callback(lambda done: _leave(done, chosen))
                task.cancel()

    async def _knock(self, address: str, port: int) -> tuple[Wire | None, Attempt]:
        """One attempt, with its handshake."""
        stream, attempt = await connect(address, port, small=True)
        if stream is None:
            return None, attempt
        reader, writer = await asyncio.open_connection(sock=stream)
        try:
            wire = await greet(reader, writer, self._key)
            said = from_leader.decode(await wire.receive())
        except NotOurs as error:
            writer.close()
            return None, replace(attempt, fate=Fate.FOREIGN, detail=str(error))
        except (OtherKey, OSError, EOFError, msgspec.DecodeError) as error:
            writer.close()
            return None, replace(attempt, fate=Fate.STRANGER, detail=str(error))
        except BaseException:
            writer.close()
            raise
        if not isinstance(said, Welcome):
            writer.close()
            return None, replace(attempt, fate=Fate.STRANGER, detail="it talks in another way")
        self._version = said.version
        if said.key == self._copy.key:
            writer.close()
            return None, replace(attempt, detail="it is this very copy")
        return wire, attempt


def _leave(knocked: asyncio.Task[tuple[Wire | None, Attempt]], chosen: Wire | None) -> None:
    """Close what was opened and is not needed."""
    if not knocked.cancelled() and knocked.exception() is None:
        wire, _ = knocked.result()
        if wire is not None and wire is not chosen:
            wire.close()


def _telling(before: Attempt | None) -> bool:
    """Something answered before, which says more than that nobody does after it has gone."""
    return before is not None and before.fate in (Fate.STRANGER, Fate.FOREIGN)


def ours(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are compared over hosts, without those that are secret."""
    shown = {name: without_secret(name, value) for name, value in environ.items() if matters(name)}
    return {name: value for name, value in shown.items() if value != LEFT_OUT}

"""Brings a checkpoint together that the memories of several hosts hold in pieces (``neighbours``): by all ranks.

The ranks of a host share the work: each verifies some of what the host holds, and fetches some of what it lacks. A
piece that is damaged here is taken from the neighbour, as one that is not here.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable, HoldfastError
from holdfast.runtime.checkpoint import neighbours
from holdfast.runtime.checkpoint.loading import share_of
from holdfast.runtime.checkpoint.neighbours import GATHERED
from holdfast.runtime.checkpoint.places import Folder
from holdfast.runtime.checkpoint.rounds import Round, as_failure


@dataclass(frozen=True)
class Here:
    """One rank's view of a checkpoint in memory: it is rank ``index`` of ``count`` on host ``host``."""

    memory: Folder
    step: int
    seal: str
    index: int
    count: int
    host: int

    @property
    def folder(self) -> Path:
        """Where the pieces of this host lie, if it has any."""
        return self.memory.folder(self.step)


class _Told(msgspec.Struct, frozen=True):
    """What a rank says: the files that its host has, those of them that it found good, and where to get them.

    ``whole`` is the manifest of the whole; empty where the host has nothing of this checkpoint.
    """

    host: int
    good: tuple[str, ...]
    address: str
    whole: bytes
    why: str


class _Plan(msgspec.Struct, frozen=True):
    """What rank 0 answers: who hands out which file, and the manifest; or why it cannot be brought together."""

    secret: str
    whole: bytes = b""
    addresses: dict[str, list[str]] = {}
    lacking: dict[int, list[str]] = {}
    why: str = ""


def taken(here: Here, around: Round, *, alone: bool) -> Path:
    """This rank's folder with the whole checkpoint, every byte of it verified; all ranks call it.

    Raises:
        CheckpointUnreadable: it cannot be brought together, on all ranks alike.
        CheckpointFailed: a rank did not come.
    """
    secret = around.agree("secret", b"", lambda _: secrets.token_hex(16).encode()).decode()
    with ExitStack() as stack:
        address = ""
        if here.index == 0 and not alone and here.folder.exists():
            address = stack.enter_context(neighbours.handing_out(here.folder, secret))
        told = around.agree("held", msgspec.json.encode(_looked(here, address)), lambda given: _planned(given, secret))
        plan = msgspec.json.decode(told, type=_Plan)
        if plan.why:
            raise CheckpointUnreadable(here.folder, why=plan.why)
        if not plan.lacking:
            return here.folder
        target = here.folder
        if here.host in plan.lacking:
            target = here.memory.path / GATHERED / secret / manifest.name_of(here.step)
        agree_upon(lambda: _gather(here, plan, target), around, here.folder)
        return target


def _looked(here: Here, address: str) -> _Told:
    """Verify this rank's share of what its host holds."""
    try:
        part, whole = manifest.read(here.folder), neighbours.whole(here.folder)
    except CheckpointUnreadable as error:
        return _Told(here.host, (), "", b"", error.why)
    if whole.seal != here.seal:
        return _Told(here.host, (), "", b"", "it is not the one that the other hosts have")
    mine = share_of(part, here.index, here.count)
    bad = {damage.path: damage.why for damage in manifest.damages(here.folder, mine)}
    good = tuple(entry.path for entry in mine.files if entry.path not in bad)
    why = next((f"{path}: {why}" for path, why in bad.items()), "")
    return _Told(here.host, good, address, manifest.sealed(whole) if here.index == 0 else b"", why)


def _planned(given: list[bytes], secret: str) -> bytes:
    """On rank 0: who hands out what to whom."""
    told = [msgspec.json.decode(each, type=_Told) for each in given]
    whole = next((each.whole for each in told if each.whole), b"")
    why = next((each.why for each in told if each.why), "")
    if not whole:
        return msgspec.json.encode(_Plan(secret, why=why or "no host has it any more"))
    paths = {entry.path for entry in manifest.parse(whole, "memory").files}
    good = {host: {path for each in told if each.host == host for path in each.good} for host in {x.host for x in told}}
    lost = paths - set().union(*good.values())
    if lost:
        return msgspec.json.encode(_Plan(secret, why=why or f"no host has {min(lost)}"))
    at = {each.host: each.address for each in told if each.address}
    lacking = {host: sorted(paths - here) for host, here in good.items() if paths - here}
    wanted = {path for each in lacking.values() for path in each}
    addresses = {path: [at[host] for host, here in good.items() if path in here and host in at] for path in wanted}
    return msgspec.json.encode(_Plan(secret, whole, addresses, lacking))


def _gather(here: Here, plan: _Plan, target: Path) -> None:
    """Put this rank's share of the checkpoint into the folder: what is here as a second name, the rest from others."""
    if target == here.folder:
        return  # it is whole
    lacking, found = set(plan.lacking[here.host]), manifest.parse(plan.whole, target)
    for entry in share_of(found, here.index, here.count).files:
        (target / entry.path).parent.mkdir(parents=True, exist_ok=True)
        if entry.path in lacking:
            neighbours.fetch(plan.addresses[entry.path], plan.secret, entry, target / entry.path)
        else:
            os.link(here.folder / entry.path, target / entry.path)
    if here.index == 0:
        target.mkdir(parents=True, exist_ok=True)
        (target / manifest.FILE).write_bytes(plan.whole)


def clear(memory: Folder) -> None:
    """Remove what was put together: it has been read, or nobody will."""
    shutil.rmtree(memory.path / GATHERED, ignore_errors=True)


def agree_upon(act: Callable[[], None], around: Round, what: Path) -> None:
    """Do it on every rank. Raises CheckpointUnreadable on all of them where it fails on one."""
    why = ""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - all ranks are told
        why = why_of(error)
    told = around.agree("taken", why.encode(), lambda given: next((each for each in given if each), b""))
    if told:
        raise CheckpointUnreadable(what, why=told.decode(errors="replace"))


def why_of(error: Exception) -> str:
    """Why something failed, in a sentence."""
    return error.why if isinstance(error, HoldfastError) and error.why else as_failure("", error).why

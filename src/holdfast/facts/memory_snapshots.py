"""Reads snapshots of a GPU's memory (``torch.cuda.memory._dump_snapshot``): what lies in it, and who asked for it.

The form is that of ``torch/cuda/memory.py`` and ``torch/csrc/cuda/memory_snapshot.cpp``: segments, which are what was
asked of the driver, cut into blocks, and the last things that the allocator did, oldest first. It is hostile input:
only plain data is unpickled, sizes are bounded, a block that is none is dropped and counted. Little of it is kept.

A snapshot holds all devices of one process. Without ``_record_memory_history`` before it, no block has frames.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import SnapshotUnreadable
from holdfast.facts import plain_pickle
from holdfast.facts.allocations import Use, site, use
from holdfast.facts.flight_recorder import rank_in_name
from holdfast.facts.ranks import Place

#: A snapshot with 100,000 events of thirty frames has some 40 MB.
MOST_BYTES = 512 << 20
MOST_FRAMES = 128
#: Places kept of each device.
MOST_SITES = 24
#: Steps of the optimizer that something has to outlive before it is called kept.
_OUTLIVED = 3
_MOST_SIZE = 1 << 50
_HELD = ("active_allocated", "active_awaiting_free", "active_pending_free")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one line asked for; ``place`` is None where no frame tells. ``use`` is that of most of its bytes."""

    place: Place | None
    use: Use
    bytes: int
    blocks: int


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request that failed: its size, what the driver had free then, and who asked."""

    size: int
    free: int | None
    place: Place | None
    use: Use


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Memory made by one line in several steps that outlived the optimizer's steps after it; ``steps``: how many."""

    place: Place | None
    bytes: int
    blocks: int
    steps: int


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One device's memory, in bytes.

    ``reserved`` from the driver; of that ``held`` by tensors, ``waiting`` for another stream before it is free, and
    ``idle``, whose largest piece is ``largest``. ``whole``: idle in segments that hold nothing else, which the
    allocator gives back before it fails. ``rounding``: of what is held, more than was asked for. ``uses`` divide
    ``held``. All is as it was when a request failed last: ``returned`` bytes were free again when the snapshot was
    written, and are put back by the events since; then ``largest`` is 0, because it is not known.
    """

    device: int
    reserved: int = 0
    held: int = 0
    waiting: int = 0
    idle: int = 0
    whole: int = 0
    largest: int = 0
    rounding: int = 0
    expandable: bool = False
    uses: dict[Use, int] = {}
    sites: tuple[Site, ...] = ()
    asked: tuple[Asked, ...] = ()
    kept: tuple[Kept, ...] = ()
    returned: int = 0


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One process' snapshot. ``rank`` is what the file's name says; ``dropped``: blocks and events that were none."""

    name: str
    rank: int | None = None
    devices: tuple[DeviceMemory, ...] = ()
    dropped: int = 0


def parse(data: bytes, subject: Path | str = "(in memory)") -> Snapshot:
    """The snapshot in ``data``; ``subject`` names it, and may tell the rank.

    Raises:
        SnapshotUnreadable: it is too large, cut short, holds more than plain data, or is no snapshot.
    """
    if len(data) > MOST_BYTES:
        raise SnapshotUnreadable(subject, why=f"it is larger than the {MOST_BYTES >> 20} MiB that are read")
    try:
        content = plain_pickle.loads(data)
    except (plain_pickle.Truncated, plain_pickle.Refused) as error:
        raise SnapshotUnreadable(subject, why=str(error)) from error
    segments = content.get("segments") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(segments, list):
        raise SnapshotUnreadable(subject, why="it has no segments")
    reading = _Reading()
    for segment in segments:
        reading.add(segment)
    traces = content.get("device_traces")
    devices = sorted({*reading.devices, *(range(len(traces)) if isinstance(traces, list) else ())})
    found = [
        reading.device(device, _trace(traces, device))
        for device in devices
        if device in reading.devices or _trace(traces, device)
    ]
    return Snapshot(
        name=str(subject), rank=rank_in_name(Path(str(subject)).name), devices=tuple(found), dropped=reading.dropped
    )


def _trace(traces: Any, device: int) -> Sequence[Any]:
    trace = traces[device] if isinstance(traces, list) and device < len(traces) else ()
    return trace if isinstance(trace, list) else ()


class _Block(msgspec.Struct, frozen=True):
    """A block that is held."""

    address: int
    size: int
    use: Use
    place: Place | None


class _Reading:
    """Sums up segments by device, and events."""

    def __init__(self) -> None:
        self.devices: dict[int, dict[str, int]] = {}
        self.dropped = 0
        self._blocks: dict[int, list[_Block]] = defaultdict(list)
        self._told: dict[int, tuple[Use, Place | None]] = {}
        self._alive: list[Any] = []

    def add(self, segment: Any) -> None:
        """Count a segment's blocks."""
        blocks = segment.get("blocks") if isinstance(segment, dict) else None
        device, total = _number(segment, "device"), _number(segment, "total_size")
        if not isinstance(blocks, list) or total is None:
            self.dropped += 1
            return
        sums = self.devices.setdefault(device or 0, defaultdict(int))
        sums["reserved"] += total
        sums["expandable"] |= segment.get("is_expandable") is True
        idle = 0
        address = _number(segment, "address") or 0
        for block in blocks:
            size = _number(block, "size")
            if size is None:
                self.dropped += 1
                continue
            state = block.get("state")
            at = _number(block, "address")
            if state == _HELD[0]:
                self._hold(device or 0, block, address if at is None else at, size, sums)
            elif state in _HELD:
                sums["waiting"] += size
            else:
                idle += size
                sums["largest"] = max(sums["largest"], size)
            address += size
        sums["idle"] += idle
        sums["whole"] += idle if idle == total else 0

    def _hold(self, device: int, block: Mapping[Any, Any], address: int, size: int, sums: dict[str, int]) -> None:
        kind, place = self._of(block.get("frames", _legacy(block)))
        sums["held"] += size
        sums["rounding"] += max(0, size - (_number(block, "requested_size") or size))
        self._blocks[device].append(_Block(address, size, kind, place))

    def _of(self, frames: Any) -> tuple[Use, Place | None]:
        """What frames tell; one list of them serves many blocks and events, and is looked at once."""
        known = self._told.get(id(frames))
        if known is None:
            places = tuple(_places(frames))
            known = self._told[id(frames)] = (use(places), site(places))
            self._alive.append(frames)  # no other list gets its number
        return known

    def device(self, device: int, trace: Sequence[Any]) -> DeviceMemory:
        """All that was counted of a device."""
        sums, blocks = dict(self.devices.get(device, {})), self._blocks[device]
        now = sums.get("held", 0)
        blocks = self._when_it_failed(trace, blocks)
        sums["held"] = sum(block.size for block in blocks)
        if sums["held"] != now:
            sums["idle"] = max(0, sums.get("reserved", 0) - sums["held"] - sums.get("waiting", 0))
            sums |= {"returned": max(0, sums["held"] - now), "largest": 0, "whole": 0}
        uses: dict[Use, int] = defaultdict(int)
        for block in blocks:
            uses[block.use] += block.size
        expandable = bool(sums.pop("expandable", 0))
        return DeviceMemory(
            device=device, expandable=expandable, uses=dict(sorted(uses.items(), key=lambda one: -one[1])),
            sites=_sites(blocks), asked=tuple(self._asked(trace)), kept=self._kept(trace, blocks), **sums,
        )  # fmt: skip

    def _when_it_failed(self, trace: Sequence[Any], blocks: list[_Block]) -> list[_Block]:
        """What was held when a request failed last: whoever writes a snapshot in a handler has lost much by then."""
        failed = max((at for at, event in enumerate(trace) if _action(event) == "oom"), default=None)
        if failed is None or failed + 1 == len(trace):
            return blocks
        born: dict[int | None, _Block] = {}
        for event in trace[:failed]:
            address, size = _number(event, "addr"), _number(event, "size")
            if _action(event) == "alloc" and address is not None and size is not None:
                born[address] = _Block(address, size, *self._of(event.get("frames")))
        there = {block.address: block for block in blocks}
        for event in reversed(trace[failed + 1 :]):
            address, size = _number(event, "addr"), _number(event, "size")
            if address is None or size is None:
                continue
            if _action(event) == "alloc":
                there.pop(address, None)
            elif _action(event) == "free_requested":
                there[address] = born.get(address) or _Block(address, size, Use.UNTOLD, None)
        return list(there.values())

    def _asked(self, trace: Sequence[Any]) -> Iterator[Asked]:
        for event in trace:
            size = _number(event, "size")
            if size is not None and _action(event) == "oom":
                kind, place = self._of(event.get("frames"))
                yield Asked(size=size, free=_number(event, "device_free"), place=place, use=kind)

    def _kept(self, trace: Sequence[Any], blocks: Sequence[_Block]) -> tuple[Kept, ...]:
        """What lives of activations and losses from before the optimizer's last steps, by line.

        A step is a run of allocations by the optimizer. Where its kernel allocates nothing, none is seen, and nothing
        is said. The last allocation at an address is that of the block which lies there.
        """
        step, stepping, born = 0, False, {}
        for event in trace:
            if _action(event) != "alloc":
                continue
            kind, _ = self._of(event.get("frames"))
            step += kind is Use.OPTIMIZER and not stepping
            if kind in (Use.OPTIMIZER, Use.ACTIVATIONS, Use.LOSS):
                stepping = kind is Use.OPTIMIZER
            born[_number(event, "addr")] = step
        found: dict[Place | None, list[tuple[int, int]]] = defaultdict(list)
        for block in blocks:
            if block.use in (Use.ACTIVATIONS, Use.LOSS) and (at := born.get(block.address)) is not None and at < step:
                found[block.place].append((at, block.size))
        kept = [
            Kept(place=place, bytes=sum(size for _, size in each), blocks=len(each), steps=len({at for at, _ in each}))
            for place, each in found.items()
        ]
        kept = [each for each in kept if each.steps >= _OUTLIVED]
        return tuple(sorted(kept, key=lambda each: -each.bytes))[:MOST_SITES]


def _sites(blocks: Sequence[_Block]) -> tuple[Site, ...]:
    found: dict[tuple[Place | None, Use], list[int]] = defaultdict(list)
    for block in blocks:
        found[block.place, block.use].append(block.size)
    sites = [Site(place=place, use=kind, bytes=sum(each), blocks=len(each)) for (place, kind), each in found.items()]
    return tuple(sorted(sites, key=lambda each: -each.bytes))[:MOST_SITES]


def _legacy(block: Mapping[Any, Any]) -> Any:
    """Frames as torch 1.13 and 2.0 wrote them: of the newest piece of the block's history."""
    history = block.get("history")
    newest = history[0] if isinstance(history, list) and history else None
    return newest.get("frames") if isinstance(newest, dict) else None


def _places(frames: Any) -> Iterator[Place]:
    for frame in frames[:MOST_FRAMES] if isinstance(frames, list) else ():
        if isinstance(frame, dict):
            file, name, line = frame.get("filename"), frame.get("name"), frame.get("line")
            if isinstance(file, str) and isinstance(name, str):
                yield Place(file[:512], line if isinstance(line, int) and 0 <= line < 1 << 31 else 0, name[:256])


def _action(event: Any) -> Any:
    return event.get("action") if isinstance(event, dict) else None


def _number(content: Any, name: str) -> int | None:
    """A size or an address; None for what is none."""
    found = content.get(name) if isinstance(content, dict) else None
    return (
        found if type(found) is int and 0 <= found < (1 << 63 if name in ("address", "addr") else _MOST_SIZE) else None
    )

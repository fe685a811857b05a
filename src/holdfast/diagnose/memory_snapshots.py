"""Parse GPU memory snapshots (``torch.cuda.memory._dump_snapshot``): blocks, sizes and call sites.

The format is that of ``torch/cuda/memory.py`` and ``torch/csrc/cuda/memory_snapshot.cpp``: segments
requested from the driver, divided into blocks, and the allocator's last events, oldest first. It is
untrusted input: only plain data is unpickled, sizes are bounded, and invalid blocks are dropped and
counted. Only sums per source line are kept.

A snapshot contains all devices of one process. Without a previous ``_record_memory_history``,
blocks have no frames.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from holdfast.core import plain_pickle
from holdfast.core.errors import SnapshotUnreadable
from holdfast.core.rank_table import SourceLine
from holdfast.host.allocation_purpose import AllocationPurpose, allocation_site, purpose_of
from holdfast.watcher.flight_recorder.dump_reader import rank_in_name

#: Maximum size. A snapshot with 100,000 events of thirty frames has about 40 MB.
MAX_BYTES = 512 << 20
MAX_FRAMES = 128
#: Source lines kept per device.
MAX_SITES = 24
#: Optimizer steps that a block has to outlive to count as retained.
_RETAINED_STEPS = 3
_MAX_SIZE = 1 << 50
_ALLOCATED, *_AWAITING_FREE = ("active_allocated", "active_awaiting_free", "active_pending_free")
_STEP_PURPOSES = (
    AllocationPurpose.OPTIMIZER,
    AllocationPurpose.ACTIVATIONS,
    AllocationPurpose.LOSS,
)


class AllocationSite(msgspec.Struct, frozen=True, kw_only=True):
    """Memory for one purpose that one source line allocated; ``site`` is None without frames."""

    site: SourceLine | None
    purpose: AllocationPurpose
    bytes: int
    blocks: int


class FailedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that failed: its size, the driver's free memory at that time, and its origin."""

    size: int
    free: int | None
    site: SourceLine | None
    purpose: AllocationPurpose


class RetainedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that one line allocated in ``steps`` steps and that outlived later optimizer steps."""

    site: SourceLine | None
    bytes: int
    blocks: int
    steps: int


_SizedT = TypeVar("_SizedT", AllocationSite, RetainedMemory)


class DeviceMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One device's memory, in bytes, at the time of the last failed request.

    ``reserved`` from the driver is divided into ``held`` by tensors, ``waiting`` for another
    stream, and ``idle``, whose largest block is ``largest``. ``releasable`` is idle memory in
    segments that hold nothing else; the allocator releases these before it fails. ``rounding`` is
    the part of ``held`` beyond the requested sizes. ``purposes`` divide ``held``. ``returned``
    bytes were free again when the snapshot was written, and are restored from the events since the
    failure; ``largest`` is then unknown, and 0.
    """

    device: int
    reserved: int = 0
    held: int = 0
    waiting: int = 0
    idle: int = 0
    releasable: int = 0
    largest: int = 0
    rounding: int = 0
    expandable: bool = False
    purposes: dict[AllocationPurpose, int] = {}
    sites: tuple[AllocationSite, ...] = ()
    failed_requests: tuple[FailedRequest, ...] = ()
    retained: tuple[RetainedMemory, ...] = ()
    returned: int = 0


class MemorySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot of one process.

    ``rank`` is taken from the file name; ``dropped`` counts invalid segments and blocks.
    """

    name: str
    rank: int | None = None
    devices: tuple[DeviceMemory, ...] = ()
    dropped: int = 0


def parse_snapshot(data: bytes, subject: Path | str = "(in memory)") -> MemorySnapshot:
    """Return the snapshot in ``data``; ``subject`` is the file name, which may contain the rank.

    Raises:
        SnapshotUnreadable: it is too large, truncated, contains more than plain data, or is not a
            snapshot.
    """
    if len(data) > MAX_BYTES:
        why = f"it is larger than the limit of {MAX_BYTES >> 20} MiB"
        raise SnapshotUnreadable(subject, why=why)
    try:
        content = plain_pickle.load_plain_pickle(data)
    except (plain_pickle.PickleTruncated, plain_pickle.PickleRefused) as error:
        raise SnapshotUnreadable(subject, why=str(error)) from error
    segments = content.get("segments") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(segments, list):
        raise SnapshotUnreadable(subject, why="it has no segments")
    parser = _SnapshotParser()
    for segment in segments:
        parser.add_segment(segment)
    traces = content.get("device_traces")
    traced = range(len(traces)) if isinstance(traces, list) else ()
    found = [
        parser.summarize(device, trace)
        for device in sorted({*parser.devices, *traced})
        if (trace := _trace(traces, device)) or device in parser.devices
    ]
    return MemorySnapshot(
        name=str(subject),
        rank=rank_in_name(Path(str(subject)).name),
        devices=tuple(found),
        dropped=parser.dropped,
    )


def _trace(traces: Any, device: int) -> Sequence[Any]:
    trace = traces[device] if isinstance(traces, list) and device < len(traces) else ()
    return trace if isinstance(trace, list) else ()


class _HeldBlock(msgspec.Struct, frozen=True):
    """A block that a tensor holds."""

    address: int
    size: int
    purpose: AllocationPurpose
    site: SourceLine | None


class _SnapshotParser:
    """Sums up segments and events per device."""

    def __init__(self) -> None:
        self.devices: dict[int, dict[str, int]] = {}
        self.dropped = 0
        self._blocks: dict[int, list[_HeldBlock]] = defaultdict(list)
        self._classified: dict[int, tuple[AllocationPurpose, SourceLine | None]] = {}
        self._alive: list[Any] = []

    def add_segment(self, segment: Any) -> None:
        """Count the blocks of a segment."""
        blocks = segment.get("blocks") if isinstance(segment, dict) else None
        device, total = _number(segment, "device") or 0, _number(segment, "total_size")
        if not isinstance(blocks, list) or total is None:
            self.dropped += 1
            return
        sums = self.devices.setdefault(device, defaultdict(int))
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
            if state == _ALLOCATED:
                own = _number(block, "address")
                self._add_held(device, block, address if own is None else own, size)
            elif state in _AWAITING_FREE:
                sums["waiting"] += size
            else:
                idle += size
                sums["largest"] = max(sums["largest"], size)
            address += size
        sums["idle"] += idle
        sums["releasable"] += idle if idle == total else 0

    def _add_held(self, device: int, block: Mapping[Any, Any], address: int, size: int) -> None:
        sums = self.devices[device]
        sums["held"] += size
        sums["rounding"] += max(0, size - (_number(block, "requested_size") or size))
        frames = block.get("frames", _history_frames(block))
        self._blocks[device].append(_HeldBlock(address, size, *self._classify(frames)))

    def _classify(self, frames: Any) -> tuple[AllocationPurpose, SourceLine | None]:
        """Return purpose and site of a stack; one list of frames is shared by blocks and events."""
        known = self._classified.get(id(frames))
        if known is None:
            lines = tuple(_source_lines(frames))
            known = self._classified[id(frames)] = (purpose_of(lines), allocation_site(lines))
            self._alive.append(frames)  # so that no other list gets its id
        return known

    def summarize(self, device: int, trace: Sequence[Any]) -> DeviceMemory:
        """Return the sums of a device, at the time of the last failed request in ``trace``."""
        sums = dict(self.devices.get(device, {}))
        held_now = sums.get("held", 0)
        blocks = self._blocks_at_failure(trace, self._blocks[device])
        sums["held"] = held = sum(block.size for block in blocks)
        if held != held_now:
            sums["idle"] = max(0, sums.get("reserved", 0) - held - sums.get("waiting", 0))
            sums |= {"returned": max(0, held - held_now), "largest": 0, "releasable": 0}
        purposes: dict[AllocationPurpose, int] = defaultdict(int)
        for block in blocks:
            purposes[block.purpose] += block.size
        return DeviceMemory(
            device=device,
            expandable=bool(sums.pop("expandable", 0)),
            purposes=dict(sorted(purposes.items(), key=lambda item: -item[1])),
            sites=_sum_by_site(blocks),
            failed_requests=tuple(self._failed_requests(trace)),
            retained=self._retained(trace, blocks),
            **sums,
        )

    def _blocks_at_failure(
        self, trace: Sequence[Any], blocks: list[_HeldBlock]
    ) -> list[_HeldBlock]:
        """Return the held blocks at the last failure, by undoing the events since.

        If an exception handler writes the snapshot, much memory has been freed by then.
        """
        failed = max((at for at, event in enumerate(trace) if _action(event) == "oom"), default=-1)
        if failed in (-1, len(trace) - 1):
            return blocks
        allocated: dict[int | None, _HeldBlock] = {}
        for event in trace[:failed]:
            address, size = _number(event, "addr"), _number(event, "size")
            if _action(event) == "alloc" and address is not None and size is not None:
                stack = self._classify(event.get("frames"))
                allocated[address] = _HeldBlock(address, size, *stack)
        held = {block.address: block for block in blocks}
        for event in reversed(trace[failed + 1 :]):
            address, size = _number(event, "addr"), _number(event, "size")
            if address is None or size is None:
                continue
            if _action(event) == "alloc":
                held.pop(address, None)
            elif _action(event) == "free_requested":
                unknown = _HeldBlock(address, size, AllocationPurpose.UNKNOWN, None)
                held[address] = allocated.get(address) or unknown
        return list(held.values())

    def _failed_requests(self, trace: Sequence[Any]) -> Iterator[FailedRequest]:
        for event in trace:
            size = _number(event, "size")
            if size is not None and _action(event) == "oom":
                purpose, site = self._classify(event.get("frames"))
                free = _number(event, "device_free")
                yield FailedRequest(size=size, free=free, site=site, purpose=purpose)

    def _retained(
        self, trace: Sequence[Any], blocks: Sequence[_HeldBlock]
    ) -> tuple[RetainedMemory, ...]:
        """Return activations and losses from before the last optimizer steps, by source line.

        A step is a run of allocations by the optimizer; if its kernel allocates nothing, no step is
        visible and nothing is returned. The last allocation at an address is that of its block.
        """
        step, stepping = 0, False
        step_of_address: dict[int | None, int] = {}
        for event in trace:
            if _action(event) != "alloc":
                continue
            purpose, _ = self._classify(event.get("frames"))
            step += purpose is AllocationPurpose.OPTIMIZER and not stepping
            if purpose in _STEP_PURPOSES:
                stepping = purpose is AllocationPurpose.OPTIMIZER
            step_of_address[_number(event, "addr")] = step
        found: dict[SourceLine | None, list[tuple[int, int]]] = defaultdict(list)
        for block in blocks:
            made_in = step_of_address.get(block.address, step)
            if made_in < step and block.purpose in _STEP_PURPOSES[1:]:
                found[block.site].append((made_in, block.size))
        retained = [
            RetainedMemory(
                site=site,
                bytes=sum(size for _, size in listed),
                blocks=len(listed),
                steps=len({made_in for made_in, _ in listed}),
            )
            for site, listed in found.items()
        ]
        return _largest(each for each in retained if each.steps >= _RETAINED_STEPS)


def _sum_by_site(blocks: Sequence[_HeldBlock]) -> tuple[AllocationSite, ...]:
    found: dict[tuple[SourceLine | None, AllocationPurpose], list[int]] = defaultdict(list)
    for block in blocks:
        found[block.site, block.purpose].append(block.size)
    return _largest(
        AllocationSite(site=site, purpose=purpose, bytes=sum(sizes), blocks=len(sizes))
        for (site, purpose), sizes in found.items()
    )


def _largest(items: Iterable[_SizedT]) -> tuple[_SizedT, ...]:
    return tuple(sorted(items, key=lambda item: -item.bytes))[:MAX_SITES]


def _history_frames(block: Mapping[Any, Any]) -> Any:
    """Return the frames of torch 1.13 and 2.0: of the newest entry in the block's history."""
    history = block.get("history")
    newest = history[0] if isinstance(history, list) and history else None
    return newest.get("frames") if isinstance(newest, dict) else None


def _source_lines(frames: Any) -> Iterator[SourceLine]:
    for frame in frames[:MAX_FRAMES] if isinstance(frames, list) else ():
        if isinstance(frame, dict):
            file, name, line = frame.get("filename"), frame.get("name"), frame.get("line")
            if isinstance(file, str) and isinstance(name, str):
                number = line if isinstance(line, int) and 0 <= line < 1 << 31 else 0
                yield SourceLine(file[:512], number, name[:256])


def _action(event: Any) -> Any:
    return event.get("action") if isinstance(event, dict) else None


def _number(content: Any, name: str) -> int | None:
    """Return a size or an address; None if it is missing or invalid."""
    value = content.get(name) if isinstance(content, dict) else None
    limit = 1 << 63 if name in ("address", "addr") else _MAX_SIZE
    return value if type(value) is int and 0 <= value < limit else None

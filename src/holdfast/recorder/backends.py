"""The backends that write calls to the trace: one interface, in C++ and in Python.

``begin`` reserves a record and returns its number, ``finish`` records its completion or failure.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Protocol

import msgspec

import holdfast
from holdfast.core import trace_file
from holdfast.core.trace_file import GROUP_BYTES, RECORD, RECORD_BYTES, TraceNote, TraceWriter

#: User frames in a record: the call site, and the caller of that function.
CALL_LEVELS = 2
#: Maximum wait for callbacks of completed calls, which take microseconds.
CALLBACKS_TIMEOUT_S = 1.0
#: In the list of foreign prefixes torch and holdfast come first, then libraries.
FIRST_LIBRARY = 2


class RecorderBackend(Protocol):
    """Writes records of calls; ``mode`` is its display name."""

    mode: str

    def begin(self, group: str, operation: int, elements: int = 0) -> int:
        """Record that this process enters ``operation`` of a group; return the record's number.

        ``operation`` is an index into ``trace_file.OPERATIONS``.
        """
        ...

    def finish(self, number: int, *, failed: bool = False) -> None:
        """Record that the call with this number completed or failed."""
        ...

    def renew(self) -> None:
        """Reset all numbering after the trace was renewed."""
        ...

    def wait_for_callbacks(self) -> None:
        """Wait, up to a second, until the completion of earlier calls is recorded."""
        ...


def foreign_prefixes(torch_home: str) -> list[str]:
    """Return the folders of non-user code: torch's, holdfast's, then libraries'.

    A call site is the first frame outside of them.
    """
    paths = sysconfig.get_paths()
    libraries = [paths["purelib"], paths["platlib"], paths["stdlib"], paths["platstdlib"]]
    return [
        f"{torch_home}/",
        f"{Path(holdfast.__file__).parent}/",
        *dict.fromkeys(f"{path}/" for path in libraries),
    ]


class NativeRecorder:
    """The C++ recorder; once installed, it intercepts every c10d operator.

    See ``native/recorder.cpp``.
    """

    mode = "native"

    def __init__(self, library: Path, trace: TraceWriter, torch_home: str) -> None:
        # PyDLL keeps the GIL: the library reads Python frames.
        self._library = ctypes.PyDLL(str(library))
        self._library.holdfast_install.restype = ctypes.c_char_p
        self._library.holdfast_begin.restype = ctypes.c_uint64
        areas = [ctypes.c_uint64(value) for value in trace.areas]
        prefixes = "\n".join(foreign_prefixes(torch_home)).encode()
        error = self._library.holdfast_install(
            ctypes.c_void_p(trace.address()), *areas, ctypes.c_char_p(prefixes)
        )
        if error:
            raise OSError(error.decode(errors="replace"))
        trace.append = self._append
        self._trace = trace

    def renew(self) -> None:
        """See :class:`RecorderBackend`."""
        self._library.holdfast_move(ctypes.c_void_p(self._trace.address()))

    def wait_for_callbacks(self) -> None:
        """See :class:`RecorderBackend`. Not needed: the callbacks are in C++."""

    def _append(self, line: bytes) -> None:
        self._library.holdfast_note(line, ctypes.c_uint64(len(line)))

    def begin(self, group: str, operation: int, elements: int = 0) -> int:
        """See :class:`RecorderBackend`."""
        number: int = self._library.holdfast_begin(
            group.encode(), ctypes.c_uint32(operation), ctypes.c_uint64(elements)
        )
        return number

    def finish(self, number: int, *, failed: bool = False) -> None:
        """See :class:`RecorderBackend`."""
        self._library.holdfast_finish(ctypes.c_uint64(number), ctypes.c_uint32(failed))


class CallDetails(msgspec.Struct, frozen=True, gc=False):
    """Details of a call beyond its group and operation, numbered as in trace_file.

    Defaults mean "none".
    """

    elements: int = 0
    dtype: int = 0
    shape: tuple[int, ...] = ()
    tensors: int = 0
    peer: int = -1
    tag: int = -1
    reduction: int = trace_file.NO_REDUCTION
    backend: str = ""


_NO_DETAILS = CallDetails()


class PythonRecorder:
    """Writes the same records in Python, for machines without a compiler; many times slower."""

    mode = "python"

    def __init__(self, trace: TraceWriter, torch_home: str) -> None:
        self._trace = trace
        self._foreign = foreign_prefixes(torch_home)
        self._lock = threading.Lock()
        self._groups: dict[str, int] = {}
        self._sites: dict[tuple[str, int], int] = {}
        self._entry_counts: Counter[object] = Counter()
        self._number = 0
        #: Calls whose completion a callback will record.
        self.awaited: set[int] = set()

    def begin(self, group: str, operation: int, elements: int = 0) -> int:
        """See :class:`RecorderBackend`."""
        return self.record(
            group, operation, CallDetails(elements=elements) if elements else _NO_DETAILS
        )

    def renew(self) -> None:
        """See :class:`RecorderBackend`."""
        with self._lock:
            self._groups.clear()
            self._sites.clear()
            self._entry_counts.clear()
            self.awaited.clear()
            (self._number,) = trace_file.HEADS.unpack_from(self._trace.map, trace_file.RECORDS_HEAD)

    def wait_for_callbacks(self) -> None:
        """See :class:`RecorderBackend`.

        A group must not be destroyed before: torch may hold the GIL while it waits for gloo's
        threads to end (e.g. in the destructor of DistributedDataParallel's reducer, torch 2.6), and
        they wait for the GIL to run the callbacks.
        """
        deadline = time.monotonic() + CALLBACKS_TIMEOUT_S
        while self.awaited and time.monotonic() < deadline:
            time.sleep(0.001)

    def record(self, group: str, operation: int, call: CallDetails) -> int:
        """Write one complete record and return its number."""
        site, caller = self._sites_of_call()
        elements, dtype, shape, peer, tag = (
            call.elements,
            call.dtype,
            call.shape,
            call.peer,
            call.tag,
        )
        entered = time.monotonic_ns()
        with self._lock:
            self._number += 1
            number = self._number
            group_number = self._group(group, call.backend)
            key = (group, operation, peer, tag) if operation in trace_file.POINT_TO_POINT else group
            self._entry_counts[key] += 1
            sequence = self._entry_counts[key]
        check = trace_file.record_checksum(
            number,
            entered,
            sequence,
            elements,
            group_number << 32 | site,
            operation | dtype << 16 | (peer & 0xFFFFFFFF) << 32,
        )
        dims = (*(min(size, 0xFFFFFFFF) for size in shape[:8]), *(0,) * (8 - len(shape[:8])))
        offset = self._trace.ring_at + (number - 1) % self._trace.records * RECORD_BYTES
        fields = (
            entered,
            0,
            sequence,
            elements,
            group_number,
            site,
            operation,
            dtype,
            peer,
            tag,
            0,
            call.tensors,
            caller,
            *dims,
            call.reduction,
            min(len(shape), 8),
            0,
            threading.get_native_id(),
            check,
        )
        trace_file.HEADS.pack_into(self._trace.map, offset, 0)
        RECORD.pack_into(self._trace.map, offset, 0, *fields)
        trace_file.HEADS.pack_into(self._trace.map, offset, number)
        trace_file.HEADS.pack_into(self._trace.map, trace_file.RECORDS_HEAD, number)
        if key is group:
            self._group_slot(group_number, 0, sequence, entered)
        return number

    def finish(self, number: int, *, failed: bool = False) -> None:
        """See :class:`RecorderBackend`."""
        offset = self._trace.ring_at + (number - 1) % self._trace.records * RECORD_BYTES
        values = RECORD.unpack_from(self._trace.map, offset)
        if values[0] != number:
            return  # overwritten since
        now = time.monotonic_ns()
        if failed:
            self._trace.map[offset + trace_file.OUTCOME_AT] = trace_file.FAILED
        trace_file.HEADS.pack_into(self._trace.map, offset + trace_file.COMPLETED_AT, now)
        if not failed and values[7] not in trace_file.POINT_TO_POINT:
            self._group_slot(values[5], 8, values[3], now)

    def mark_no_completion(self, number: int) -> None:
        """Mark a call whose completion cannot be recorded."""
        offset = self._trace.ring_at + (number - 1) % self._trace.records * RECORD_BYTES
        self._trace.map[offset + trace_file.FLAGS_AT] = trace_file.FLAG_NO_COMPLETION

    def _group_slot(self, group: int, field_offset: int, sequence: int, at_ns: int) -> None:
        begin = trace_file.HEADER_BYTES + group * GROUP_BYTES
        trace_file.HEADS.pack_into(self._trace.map, begin + field_offset, sequence)
        trace_file.HEADS.pack_into(self._trace.map, begin + field_offset + 16, at_ns)

    def _group(self, name: str, backend: str) -> int:
        group_number = self._groups.get(name)
        if group_number is None:
            group_number = self._groups[name] = min(len(self._groups), trace_file.GROUPS - 1)
            self._trace.note(TraceNote.GROUP, group_number, backend, name)
        return group_number

    def _sites_of_call(self) -> tuple[int, int]:
        """Return the numbers of the call site and of its caller's frame; 0 if there is none.

        The call site is the first user frame, or else the first library frame.
        """
        user_frames: list[FrameType] = []
        library: FrameType | None = None
        frame: FrameType | None = sys._getframe(2)
        for _ in range(64):
            if frame is None or len(user_frames) == CALL_LEVELS:
                break
            file = frame.f_code.co_filename
            owner = next(
                (i for i, prefix in enumerate(self._foreign) if file.startswith(prefix)), -1
            )
            if owner == -1 and not file.startswith("<"):
                user_frames.append(frame)
            elif owner >= FIRST_LIBRARY and library is None:
                library = frame
            frame = frame.f_back
        site_numbers = [
            self._site_number(frame)
            for frame in user_frames or ([library] if library is not None else [])
        ]
        return (*site_numbers, 0, 0)[0], (*site_numbers, 0, 0)[1]

    def _site_number(self, frame: FrameType) -> int:
        location = (frame.f_code.co_filename, frame.f_lineno)
        site_number = self._sites.get(location)
        if site_number is None:
            site_number = self._sites[location] = len(self._sites) + 1
            self._trace.note(
                TraceNote.SITE, site_number, location[1], frame.f_code.co_name, location[0]
            )
        return site_number

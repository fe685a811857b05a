"""What writes one call into the box: the same two verbs in C++ and in Python.

A pen's ``begin`` reserves a record and returns its number, ``finish`` says that the call has completed or failed.
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
from holdfast import blackbox
from holdfast.blackbox import GROUP_BYTES, RECORD, RECORD_BYTES, BoxWriter, Note

#: Frames of the user's that a record names: where the call stands, and who called that function.
CALL_LEVELS = 2
#: In the list of foreign prefixes torch and holdfast come first, then libraries.
FIRST_LIBRARY = 2


class Pen(Protocol):
    """Writes records of calls; ``mode`` names it for people."""

    mode: str

    def begin(self, group: str, operation: int, elements: int = 0) -> int:
        """Record that this process enters ``operation`` (a number of blackbox.OPERATIONS) of a group; its number."""
        ...

    def finish(self, number: int, *, failed: bool = False) -> None:
        """Record that the call with this number completed or failed."""
        ...

    def renew(self) -> None:
        """The box has begun anew: nothing that was numbered in it is known any more."""
        ...


def foreign_prefixes(torch_home: str) -> list[str]:
    """Folders whose files are not the user's: torch's, ours, then libraries'.

    A call site is the first frame outside.
    """
    paths = sysconfig.get_paths()
    libraries = [paths["purelib"], paths["platlib"], paths["stdlib"], paths["platstdlib"]]
    return [f"{torch_home}/", f"{Path(holdfast.__file__).parent}/", *dict.fromkeys(f"{path}/" for path in libraries)]


class NativePen:
    """The recorder in C++; once installed it sees every c10d operator by itself. See ``native/recorder.cpp``."""

    mode = "native"

    def __init__(self, library: Path, box: BoxWriter, torch_home: str) -> None:
        self._library = ctypes.PyDLL(str(library))  # PyDLL: it may read Python frames, so it is entered with the GIL
        self._library.holdfast_install.restype = ctypes.c_char_p
        self._library.holdfast_begin.restype = ctypes.c_uint64
        areas = [ctypes.c_uint64(value) for value in box.areas]
        prefixes = "\n".join(foreign_prefixes(torch_home)).encode()
        trouble = self._library.holdfast_install(ctypes.c_void_p(box.address()), *areas, ctypes.c_char_p(prefixes))
        if trouble:
            raise OSError(trouble.decode(errors="replace"))
        box.append = self._append
        self._box = box

    def renew(self) -> None:
        """See :class:`Pen`."""
        self._library.holdfast_move(ctypes.c_void_p(self._box.address()))

    def _append(self, line: bytes) -> None:
        self._library.holdfast_note(line, ctypes.c_uint64(len(line)))

    def begin(self, group: str, operation: int, elements: int = 0) -> int:
        """See :class:`Pen`."""
        number: int = self._library.holdfast_begin(
            group.encode(), ctypes.c_uint32(operation), ctypes.c_uint64(elements)
        )
        return number

    def finish(self, number: int, *, failed: bool = False) -> None:
        """See :class:`Pen`."""
        self._library.holdfast_finish(ctypes.c_uint64(number), ctypes.c_uint32(failed))


class Call(msgspec.Struct, frozen=True, gc=False):
    """What is known of a call beyond its group and operation; numbers as in blackbox. Defaults say "there is none"."""

    elements: int = 0
    dtype: int = 0
    shape: tuple[int, ...] = ()
    tensors: int = 0
    peer: int = -1
    tag: int = -1
    reduction: int = blackbox.NO_REDUCTION
    backend: str = ""


_BARE = Call()


class PythonPen:
    """The same records written by Python, for machines without a compiler; many times dearer."""

    mode = "python"

    def __init__(self, box: BoxWriter, torch_home: str) -> None:
        self._box = box
        self._foreign = foreign_prefixes(torch_home)
        self._lock = threading.Lock()
        self._groups: dict[str, int] = {}
        self._sites: dict[tuple[str, int], int] = {}
        self._entered: Counter[object] = Counter()
        self._number = 0

    def begin(self, group: str, operation: int, elements: int = 0) -> int:
        """See :class:`Pen`."""
        return self.record(group, operation, Call(elements=elements) if elements else _BARE)

    def renew(self) -> None:
        """See :class:`Pen`."""
        with self._lock:
            self._groups.clear()
            self._sites.clear()
            self._entered.clear()
            (self._number,) = blackbox.HEADS.unpack_from(self._box.map, blackbox.RECORDS_HEAD)

    def record(self, group: str, operation: int, call: Call) -> int:
        """Write one whole record and return its number."""
        site, caller = self._sites_of_call()
        elements, dtype, shape, peer, tag = call.elements, call.dtype, call.shape, call.peer, call.tag
        entered = time.monotonic_ns()
        with self._lock:
            self._number += 1
            number = self._number
            group_number = self._group(group, call.backend)
            key = (group, operation, peer, tag) if operation in blackbox.POINT_TO_POINT else group
            self._entered[key] += 1
            sequence = self._entered[key]
        check = blackbox.check_word(
            number, entered, sequence, elements, group_number << 32 | site,
            operation | dtype << 16 | (peer & 0xFFFFFFFF) << 32,
        )  # fmt: skip
        dims = (*(min(size, 0xFFFFFFFF) for size in shape[:8]), *(0,) * (8 - len(shape[:8])))
        at = self._box.ring_at + (number - 1) % self._box.records * RECORD_BYTES
        fields = (
            entered, 0, sequence, elements, group_number, site, operation, dtype, peer, tag, 0, call.tensors,
            caller, *dims, call.reduction, min(len(shape), 8), 0, threading.get_native_id(), check,
        )  # fmt: skip
        blackbox.HEADS.pack_into(self._box.map, at, 0)
        RECORD.pack_into(self._box.map, at, 0, *fields)
        blackbox.HEADS.pack_into(self._box.map, at, number)
        blackbox.HEADS.pack_into(self._box.map, blackbox.RECORDS_HEAD, number)
        if key is group:
            self._group_slot(group_number, 0, sequence, entered)
        return number

    def finish(self, number: int, *, failed: bool = False) -> None:
        """See :class:`Pen`."""
        at = self._box.ring_at + (number - 1) % self._box.records * RECORD_BYTES
        values = RECORD.unpack_from(self._box.map, at)
        if values[0] != number:
            return  # overwritten meanwhile
        now = time.monotonic_ns()
        if failed:
            self._box.map[at + blackbox.OUTCOME_AT] = blackbox.FAILED
        blackbox.HEADS.pack_into(self._box.map, at + blackbox.COMPLETED_AT, now)
        if not failed and values[7] not in blackbox.POINT_TO_POINT:
            self._group_slot(values[5], 8, values[3], now)

    def cannot_tell(self, number: int) -> None:
        """Say of a call that its completion will not be known."""
        at = self._box.ring_at + (number - 1) % self._box.records * RECORD_BYTES
        self._box.map[at + blackbox.FLAGS_AT] = blackbox.FLAG_NO_COMPLETION

    def _group_slot(self, group: int, which: int, sequence: int, at_ns: int) -> None:
        begin = blackbox.HEADER_BYTES + group * GROUP_BYTES
        blackbox.HEADS.pack_into(self._box.map, begin + which, sequence)
        blackbox.HEADS.pack_into(self._box.map, begin + which + 16, at_ns)

    def _group(self, name: str, backend: str) -> int:
        known = self._groups.get(name)
        if known is None:
            known = self._groups[name] = min(len(self._groups), blackbox.GROUPS - 1)
            self._box.note(Note.GROUP, known, backend, name)
        return known

    def _sites_of_call(self) -> tuple[int, int]:
        """Numbers of the call site (the first frame of the user's, else of a library's) and of the user's frame above.

        0 where there is none.
        """
        own: list[FrameType] = []
        library: FrameType | None = None
        frame: FrameType | None = sys._getframe(2)
        for _ in range(64):
            if frame is None or len(own) == CALL_LEVELS:
                break
            file = frame.f_code.co_filename
            owner = next((i for i, prefix in enumerate(self._foreign) if file.startswith(prefix)), -1)
            if owner == -1 and not file.startswith("<"):
                own.append(frame)
            elif owner >= FIRST_LIBRARY and library is None:
                library = frame
            frame = frame.f_back
        found = [self._number_of(each) for each in own or ([library] if library is not None else [])]
        return (*found, 0, 0)[0], (*found, 0, 0)[1]

    def _number_of(self, frame: FrameType) -> int:
        place = (frame.f_code.co_filename, frame.f_lineno)
        known = self._sites.get(place)
        if known is None:
            known = self._sites[place] = len(self._sites) + 1
            self._box.note(Note.SITE, known, place[1], frame.f_code.co_name, place[0])
        return known

"""The trace file: one memory-mapped file per rank that survives the death of its writer.

Layout, version 1, little-endian (``docs/trace-files.md`` draws it)::

    0        header        rank, pid, host, start, clocks, offsets of the areas below
    512      heads         records begun, bytes of notes begun          (one cache line each)
    640      step slot     step, phase and its budget, under a sequence lock
    1024     host times    ns in the data loader, ns in garbage collection   (8 bytes each)
    4096     groups        64 bytes per process group: last sequence entered and completed, times
    ...      notes         appended lines: facts, call sites, groups, exceptions, the script's end
    ...      ring          128 bytes per collective or point-to-point call; oldest overwritten

One process writes, without locks or system calls: it reserves a slot by an atomic addition, fills
it, and then writes its number and checksum; a reader drops every record whose number or checksum
does not match (torn). Times are nanoseconds of CLOCK_MONOTONIC; the header's clock offset converts
them to Unix time. The C++ recorder (``recorder/native/``) writes the same layout; a test compares
the two.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.errors import ShmUnavailable

MAGIC = b"HOLDFAST"
VERSION = 1
HEADER_BYTES = 4096
GROUP_BYTES = 64
GROUPS = 1024
NOTES_BYTES = 512 * 1024
RECORD_BYTES = 128
RING_RECORDS = 4096

# rank, world size, local rank, generation, pid, start ticks, started (Unix s), clock offset (ns),
# then the areas.
HEADER = struct.Struct("<8sII IIII QQ dq QQ QQ QQ 64s")
_NOTES_AREA = slice(13, 15)  # its offset and size in the header
HEADS = struct.Struct("<Q")
RECORDS_HEAD = 512
NOTES_HEAD = 576
STEP = 640
HOST_TIMES = 1024
#: Nanoseconds that the script's threads have spent in each, since the start; 0 in older files.
HOST_TIMES_SLOT = struct.Struct("<QQ")
LOADER, COLLECTOR = range(2)
STEP_SLOT = struct.Struct(
    "<Qq QQ dQ 64s"
)  # lock, step, step's ns, steps counted, budget s, phase's ns, phase
RECORD = struct.Struct("<QQQQQ II HHii III 8I HHI QQ")

#: Offsets within a record of fields that are written after the record itself.
COMPLETED_AT = 16
FLAGS_AT = 60
OUTCOME_AT = 108

#: On this signal the recorder dumps every thread's Python stack (faulthandler, so it works while
#: the GIL is held).
STACK_SIGNAL = 34 + 7

#: A file of this name next to the trace files: SIGTERM comes from the agent, which ends all ranks
#: because one failed.
TEARDOWN = "ranks-end"

FLAG_NO_COMPLETION = 1  # the backend does not report completion
FLAG_NO_PYTHON = 2  # called by a C++ thread without Python frames: no call site
FAILED = 1

OPERATIONS = tuple(
    """
    unknown all_reduce broadcast all_gather all_gather_into_tensor reduce_scatter
    reduce_scatter_tensor reduce gather scatter all_to_all all_to_all_single barrier
    monitored_barrier send recv recv_any_source all_reduce_coalesced all_gather_coalesced
    all_gather_into_tensor_coalesced reduce_scatter_tensor_coalesced init_process_group new_group
    destroy_process_group checkpoint
    """.split()
)
#: Numbers of the operations that are counted per peer, not per group.
POINT_TO_POINT = range(OPERATIONS.index("send"), OPERATIONS.index("recv_any_source") + 1)

#: torch's ScalarType by number (c10/core/ScalarType.h).
DTYPES = tuple(
    """
    uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool qint8
    quint8 qint32 bfloat16 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 bits8 bits16 float8_e5m2
    float8_e4m3fn float8_e5m2fnuz float8_e4m3fnuz uint16 uint32 uint64
    """.split()
)

#: c10d's ReduceOp by number (torch/csrc/distributed/c10d/Types.hpp).
REDUCTIONS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum", "")
NO_REDUCTION = REDUCTIONS.index("")

_MASK = (1 << 64) - 1


class TraceNote:
    """The first field of a line of notes: its type."""

    FACTS = "F"  # JSON array of facts
    SITE = "S"  # id, line, function, file
    GROUP = "G"  # index, backend, name: first recorded in a call
    MEMBERS = "M"  # JSON: name, ranks, description, backend: created through torch.distributed
    RAISED = "X"  # JSON: type, text, file, line, function
    ENDED = "E"  # JSON: how, file, line, function, time
    SAVED = "C"  # JSON: step, path, time: a checkpoint was committed or loaded
    PREEMPTED = (
        "P"  # JSON: signal, step, status, time: all ranks saved and exit after a scheduler warning
    )
    # JSON: a problem that holdfast.loop detected, a StepProblem of core/rank_table.py
    TROUBLE = "T"
    WORD = "W"  # one sentence for people
    WARNED = "A"  # JSON: about, text: a warning to report while the job continues


def record_checksum(
    number: int, entered: int, sequence: int, elements: int, place: int, kind: int
) -> int:
    """Return the checksum of a record.

    ``place`` is group << 32 | site, ``kind`` is operation | dtype << 16 | peer << 32.
    """
    mixed = number ^ (entered * 3) ^ (sequence * 5) ^ (elements * 7) ^ (place * 11) ^ (kind * 13)
    return ~mixed & _MASK


def process_start_ticks(pid: int) -> int:
    """Return a process's start in clock ticks since boot; 0 if it cannot be read.

    This is field 22 of /proc/pid/stat.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19])
    except (OSError, ValueError, IndexError):
        return 0


def read_last_note(path: Path, kind: str) -> bytes | None:
    """Return the last note of this kind in a trace file, without its kind; None if there is none.

    For other data see ``watcher/trace_reader.py``, which needs numpy.
    """
    try:
        data = path.read_bytes()
        notes_at, size = HEADER.unpack_from(data)[_NOTES_AREA]
    except (OSError, struct.error):
        return None
    lines = data[notes_at : notes_at + size].splitlines()
    prefix = f"{kind}\t".encode()
    return next((line[len(prefix) :] for line in reversed(lines) if line.startswith(prefix)), None)


class TraceWriter:
    """Creates the trace file of this process and writes everything that Python records.

    Raises:
        ShmUnavailable: the file cannot be created or the file system is full.
    """

    def __init__(
        self,
        path: Path,
        *,
        rank: int,
        world_size: int,
        local_rank: int = 0,
        generation: int = 0,
        records: int = RING_RECORDS,
    ) -> None:
        self.path = path
        self.records = records
        self._groups_at = HEADER_BYTES
        self._notes_at = self._groups_at + GROUPS * GROUP_BYTES
        self.ring_at = self._notes_at + NOTES_BYTES
        self._lock = threading.Lock()
        self._retired_maps: list[mmap.mmap] = []
        self._steps = 0
        self._explicit_step = False
        #: Appends a line of notes; the C++ recorder substitutes its own, so that both reserve space
        #: alike.
        self.append: Callable[[bytes], None] = self._append
        self.map = self._allocate(self.ring_at + records * RECORD_BYTES)
        self._write_header(rank, world_size, local_rank, generation)

    def _allocate(self, size: int) -> mmap.mmap:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ShmUnavailable(str(self.path), why=error.strerror or str(error)) from error
        try:
            # Writing to a mapped page without backing space raises SIGBUS in the middle of
            # training.
            os.posix_fallocate(handle, 0, size)
            return mmap.mmap(handle, size)
        except OSError as error:
            self.path.unlink(missing_ok=True)
            raise ShmUnavailable(str(self.path), why=error.strerror or str(error)) from error
        finally:
            os.close(handle)

    def renew(self, *, rank: int, world_size: int, local_rank: int, generation: int) -> None:
        """Replace this trace file by an empty one when the process continues in a new generation.

        Record numbers continue, so that a call of the old generation that completes now finds no
        record.

        Raises:
            ShmUnavailable: as for the first file; the old one stays in use.
        """
        (begun,) = HEADS.unpack_from(self.map, RECORDS_HEAD)
        new_map = self._allocate(self.ring_at + self.records * RECORD_BYTES)
        HEADS.pack_into(new_map, RECORDS_HEAD, -(-begun // self.records) * self.records)
        self._retired_maps.append(self.map)  # the recorder's threads may still write there
        self.map, self._steps, self._explicit_step = new_map, 0, False
        self._write_header(rank, world_size, local_rank, generation)

    def _write_header(self, rank: int, world_size: int, local_rank: int, generation: int) -> None:
        self.world_size = world_size
        offset = time.time_ns() - time.monotonic_ns()
        pid = os.getpid()
        # The magic is written last: a file without it was never finished.
        HEADER.pack_into(
            self.map,
            0,
            b"\0" * 8,
            VERSION,
            HEADER_BYTES,
            rank,
            world_size,
            local_rank,
            generation,
            pid,
            process_start_ticks(pid),
            time.time(),
            offset,
            self._groups_at,
            GROUPS,
            self._notes_at,
            NOTES_BYTES,
            self.ring_at,
            self.records,
            os.uname().nodename.encode()[:63],
        )
        self.map[0:8] = MAGIC

    def note(self, kind: str, *fields: str | int) -> None:
        """Append one line; dropped if the notes area is full (the ring continues)."""
        line = (
            "\t".join(
                (kind, *(str(field).replace("\t", " ").replace("\n", "\\n") for field in fields))
            )
            + "\n"
        )
        data = line.encode(errors="replace")
        self.append(data)

    def _append(self, data: bytes) -> None:
        with self._lock:
            (begin,) = HEADS.unpack_from(self.map, NOTES_HEAD)
            if begin + len(data) > NOTES_BYTES:
                return
            HEADS.pack_into(self.map, NOTES_HEAD, begin + len(data))
            self.map[self._notes_at + begin : self._notes_at + begin + len(data)] = data

    def note_json(self, kind: str, value: Any) -> None:
        """Append one line whose second field is ``value`` as JSON."""
        self.note(kind, msgspec.json.encode(value).decode())

    def step(self, number: int | None = None) -> int:
        """Record that step ``number`` begins.

        None increments, unless the script sets steps explicitly.
        """
        if number is None and self._explicit_step:
            return self._steps
        self._explicit_step |= number is not None
        self._steps = self._steps + 1 if number is None else number
        with self._lock:
            lock, _, _, counted, budget, since, phase = STEP_SLOT.unpack_from(self.map, STEP)
            self._write_slot(
                lock, self._steps, time.monotonic_ns(), counted + 1, budget, since, phase
            )
        return self._steps

    def phase(self, name: str, budget_s: float) -> None:
        """Record the start of a phase and its budget in seconds; an empty name ends the phase."""
        with self._lock:
            lock, step, at, counted, *_ = STEP_SLOT.unpack_from(self.map, STEP)
            self._write_slot(
                lock, step, at, counted, budget_s, time.monotonic_ns(), name.encode()[:63]
            )

    def add_time(self, kind: int, nanoseconds: int) -> None:
        """Add to the time in the data loader (LOADER) or in garbage collection (COLLECTOR)."""
        at = HOST_TIMES + kind * HEADS.size
        (before,) = HEADS.unpack_from(self.map, at)
        HEADS.pack_into(self.map, at, before + nanoseconds)

    def _write_slot(self, lock: int, *values: Any) -> None:
        HEADS.pack_into(self.map, STEP, lock + 1)  # odd: being written
        STEP_SLOT.pack_into(self.map, STEP, lock + 1, *values)
        HEADS.pack_into(self.map, STEP, lock + 2)

    @property
    def areas(self) -> tuple[int, int, int, int, int, int]:
        """Return offset and size of the groups (count), notes (bytes) and ring (records)."""
        return self._groups_at, GROUPS, self._notes_at, NOTES_BYTES, self.ring_at, self.records

    def address(self) -> int:
        """Return the address of the mapping in this process, which the C++ recorder shares."""
        import ctypes  # noqa: PLC0415 - only the native recorder needs it

        return ctypes.addressof(ctypes.c_char.from_buffer(self.map))

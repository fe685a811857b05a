"""Fuzz targets: each accepts any bytes and raises only documented exceptions."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

from holdfast.core import plain_pickle, trace_file
from holdfast.core.collective_history import advise, parse_history
from holdfast.core.errors import DumpUnreadable, InvalidValue, TraceUnreadable
from holdfast.core.redaction import redact
from holdfast.core.redaction.redact import Redactor
from holdfast.diagnose import trace_files
from holdfast.diagnose.bundle.redact_records import redact_document, redact_trace
from holdfast.diagnose.diagnosis_page import write_diagnosis_page
from holdfast.diagnose.dumps import dump_set as dump_tables_of
from holdfast.diagnose.dumps.rules import judge as judge_dumps
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind, SkippedEvidence, gather
from holdfast.diagnose.evidence.streams import IntakeLimits
from holdfast.diagnose.logs import lines
from holdfast.diagnose.logs.scan import Scanner
from holdfast.diagnose.logs.signals import ROWS, extract_fields
from holdfast.diagnose.pipeline import diagnose
from holdfast.diagnose.stacks import stack_dumps
from holdfast.host.processes import stack_text
from holdfast.watcher.flight_recorder import dump_reader
from holdfast.watcher.history_facts import encode_history, history_facts
from tests.fuzz import checkpoint_folders, checkpoints, files, seeds
from tests.fuzz.seeds import DUMP, FAULTHANDLER, LINE, PY_SPY, PY_SPY_JSON, RANKS, SECRETS, VERDICT
from tests.unit.core.test_collective_history import after, event

TABLE = tuple((row.name, row.find or row.expression, row.ignore_case) for row in ROWS)
_SLOW, _FAST = Scanner(TABLE), Scanner(TABLE)
_SLOW._searched_bytes = -(1 << 60)  # a small log: never uses Hyperscan
_FAST._searched_bytes = 1 << 60  # uses Hyperscan at once if it is installed
#: Limits on unpacking; `_drain` asserts that they hold.
LIMITS = IntakeLimits(files=1000, free_bytes=4 << 20, ratio=10, spool_bytes=1 << 20)
#: An anonymous file: atheris ends the process without cleanup.
_FILE = Path(f"/proc/self/fd/{os.memfd_create('evidence')}")
_TRACE = seeds.trace_file()


def log_line(data: bytes) -> None:
    """Parse a log line and extract the fields of every signal."""
    line = lines.parse_line(data, "fuzz", 1)
    assert "\n" not in lines.clean_line(data.split(b"\n")[0])
    assert line.rank is None or line.rank >= 0
    for row in ROWS:
        extract_fields(row, line.text)


def log_scan(data: bytes) -> None:
    """Both engines return the same hits with correct offsets, and count the bytes read."""
    hits = list(_FAST.scan(io.BytesIO(data)))
    assert hits == list(_SLOW.scan(io.BytesIO(data)))
    if not data.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        assert _FAST.bytes == len(data)
        assert all(data[hit.offset :].startswith(hit.line) for hit in hits)


def plain_pickles(data: bytes) -> None:
    """Load a pickle with the same result as Python's unpickler, or reject it."""
    try:
        value = plain_pickle.load_plain_pickle(data)
    except (plain_pickle.PickleTruncated, plain_pickle.PickleRefused):
        return
    assert repr(value) == repr(pickle.loads(data))


def dumps(data: bytes) -> None:
    """Parse a flight-recorder dump or raise DumpUnreadable."""
    with contextlib.suppress(DumpUnreadable):
        dump_reader.parse_dump(data)


def dump_tables(data: bytes) -> None:
    """Judge dumps and reduced dumps of two ranks with any content."""
    for kind in (EvidenceKind.DUMP, EvidenceKind.REDUCED):
        dump_files = [
            EvidenceFile(f"dump_rank_{rank}", kind, len(data), lambda: io.BytesIO(data))
            for rank in (0, 1)
        ]
        judge_dumps(dump_tables_of.read_dumps(dump_files))


def evidence_file(data: bytes) -> None:
    """Gather a file as evidence or skip it with a one-line reason; unpacking is bounded."""
    _FILE.write_bytes(data)
    _drain(lambda: gather.gather([str(_FILE)], LIMITS), len(data))


def standard_input(data: bytes) -> None:
    """Gather evidence from a pipe, which is read once, in small blocks."""
    spool = gather.SpoolFile(LIMITS.spool_bytes)
    source = io.BufferedReader(_Pipe(data))
    _drain(lambda: gather._read_stream(source, "-", LIMITS, spool), len(data))


class _Pipe(io.RawIOBase):
    """A stream that returns at most 700 bytes per read, like a pipe."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._rest = data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        size = min(len(buffer), 700, len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _drain(gather_pieces: Callable, size: int) -> None:
    """Read all evidence; assert the limits on unpacking."""
    read = 0
    for piece in gather_pieces():
        if isinstance(piece, SkippedEvidence):
            assert piece.why
            assert "\n" not in piece.why
            continue
        with piece.open() as stream:
            while block := stream.read(1 << 16):
                read += len(block)
    # The factor 3 is for UTF-16, which grows when it is converted to UTF-8.
    assert read <= 3 * (LIMITS.free_bytes + LIMITS.ratio * size) + 3 * size


def history(data: bytes) -> None:
    """Parse a collective history or raise InvalidValue; its timeouts are within bounds."""
    with contextlib.suppress(InvalidValue):
        parsed = parse_history(data, "fuzz")
        for each in parsed.troubles:
            assert advise(each, parsed.runs).least_limit_s <= 3e9
        history_facts(parsed, "fuzz")


def stacks(data: bytes) -> None:
    """Parse text of py-spy and faulthandler."""
    stack_text.from_py_spy(data, 7, "/job")
    stack_text.from_faulthandler(data.decode("utf-8", "replace"), "/job")
    stack_dumps.parse_processes(data, "fuzz")


def traces(data: bytes) -> None:
    """Read a damaged trace file: each 12 bytes of ``data`` are an offset and the bytes written there."""
    content = bytearray(_TRACE)
    for at in range(0, len(data) - 4, 12):
        (offset,) = struct.unpack_from("<H", data, at)
        area = (0, trace_file.HEADER_BYTES + trace_file.GROUPS * trace_file.GROUP_BYTES)[
            data[at + 2] & 1
        ]
        value = data[at + 4 : at + 4 + (data[at + 3] & 7) + 1]
        begin = min(area + offset % trace_file.HEADER_BYTES, len(content) - len(value))
        content[begin : begin + len(value)] = value
    damaged = bytes(content)
    trace_files.read_trace_files(
        [EvidenceFile("rank1.trace", EvidenceKind.TRACE, len(damaged), lambda: io.BytesIO(damaged))]
    )
    with contextlib.suppress(TraceUnreadable):
        assert len(redact_trace(damaged, "rank1.trace", Redactor())) == len(damaged)


def diagnose_file(data: bytes) -> None:
    """Diagnose any file and write the page."""
    _FILE.write_bytes(data)
    diagnosis = diagnose([str(_FILE)], limits=LIMITS)
    assert diagnosis.exit_status in {0, 1, 2, 3}
    write_diagnosis_page(diagnosis)


def redaction(data: bytes) -> None:
    """Both searches give the same result, and fixed redaction preserves the length."""
    fast, full = Redactor(hosts=["node1"]), Redactor(hosts=["node1"])
    saved = redact._MIN_SEARCH_BYTES
    try:
        redact._MIN_SEARCH_BYTES = 0
        redacted = fast.redact_bytes(data)
        redact._MIN_SEARCH_BYTES = 1 << 30
        assert redacted == full.redact_bytes(data)
    finally:
        redact._MIN_SEARCH_BYTES = saved
    assert fast.counts == full.counts
    assert len(Redactor(hosts=["node1"], users=["ann"]).redact_bytes(data, fixed=True)) == len(data)
    redact_document(data, Redactor())
    b"".join(Redactor().redact_stream(io.BytesIO(data)))


#: Name -> target and seed inputs.
TARGETS = {
    "log-line": (
        log_line,
        [
            LINE,
            b"srun: error: n1: task 3: Killed",
            b"  5%|#  | 1/20 [00:01<00:20]\rKeyError: 'x'\n",
        ],
    ),
    "log-scan": (
        log_scan,
        [LINE * 3, b"\xff\xfe" + LINE.decode().encode("utf-16-le"), b"\0" * 99 + LINE],
    ),
    "plain-pickle": (plain_pickles, [pickle.dumps(DUMP, protocol) for protocol in (2, 4, 5)]),
    "dump": (dumps, [pickle.dumps(DUMP, 2), json.dumps(DUMP).encode()]),
    "dump-tables": (
        dump_tables,
        [seeds.reduced(), pickle.dumps(DUMP, 2), json.dumps(DUMP).encode()],
    ),
    "heap": (evidence_file, seeds.archives()),
    "standard-input": (standard_input, seeds.archives()),
    "history": (
        history,
        [
            encode_history(after(event(), event())),
            b'{"schema": "holdfast/history/1", "runs": 3, "troubles": []}',
        ],
    ),
    "stacks": (stacks, [PY_SPY, PY_SPY_JSON, FAULTHANDLER]),
    "box": (
        traces,
        [b"", bytes(range(96)), b"\x08\0\0\7" + b"\xff" * 8, b"\0\0\1\7" + b"raised\t{"],
    ),
    "everything": (
        diagnose_file,
        [VERDICT, RANKS, PY_SPY, PY_SPY_JSON, FAULTHANDLER, LINE, json.dumps(DUMP).encode()],
    ),
    "redaction": (redaction, SECRETS),
    **files.TARGETS,
    **checkpoints.TARGETS,
    **checkpoint_folders.TARGETS,
}

"""What is fuzzed: each target takes any bytes and may raise what it promises, and nothing else."""

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
from holdfast.diagnose import trace_files
from holdfast.diagnose.dumps import dump_set as dump_tables_of
from holdfast.diagnose.dumps.rules import judge as judge_dumps
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind, SkippedEvidence, gather
from holdfast.diagnose.evidence.streams import IntakeLimits
from holdfast.diagnose.logs import lines, scan
from holdfast.diagnose.logs.scan import Scanner
from holdfast.diagnose.logs.signals import ROWS, extract_fields
from holdfast.diagnose.pipeline import diagnose, write_diagnosis_page
from holdfast.diagnose.redaction import redact
from holdfast.diagnose.redaction.redact import Redactor
from holdfast.diagnose.redaction.redact_records import redact_document, redact_trace
from holdfast.diagnose.stacks import stack_dumps
from holdfast.host.processes import stack_text
from holdfast.watcher.flight_recorder import dump_reader
from holdfast.watcher.history_facts import encode_history, history_facts
from tests.fuzz import checkpoints, files, seeds
from tests.fuzz.seeds import DUMP, FAULTHANDLER, LINE, PY_SPY, PY_SPY_JSON, RANKS, SECRETS, VERDICT
from tests.unit.core.test_collective_history import after, event

TABLE = tuple((row.name, row.find or row.expression, row.ignore_case) for row in ROWS)
_SLOW, _FAST = Scanner(TABLE), Scanner(TABLE)
_FAST._searched_bytes = scan.SMALL_BYTES  # it goes on to Hyperscan at once, where that is installed
#: An archive may unpack to so much here; what is read of it in all shows that it does not.
LIMITS = IntakeLimits(files=1000, free_bytes=4 << 20, ratio=10, spool_bytes=1 << 20)
#: A file without a folder, which goes with the process: atheris ends it without a chance to clean up.
_FILE = Path(f"/proc/self/fd/{os.memfd_create('evidence')}")
_TRACE = seeds.trace_file()


def log_line(data: bytes) -> None:
    """A line is taken apart, and what it says is taken from it."""
    line = lines.parse_line(data, "fuzz", 1)
    assert "\n" not in lines.clean_line(data.split(b"\n")[0])
    assert line.rank is None or line.rank >= 0
    for row in ROWS:
        extract_fields(row, line.text)


def log_scan(data: bytes) -> None:
    """Both engines find the same, at offsets that are right, and count what was read."""
    found = list(_FAST.scan(io.BytesIO(data)))
    assert found == list(_SLOW.scan(io.BytesIO(data)))
    _SLOW._searched = 0
    if not data.startswith((b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")):
        assert _FAST.bytes == len(data)
        assert all(data[hit.offset :].startswith(hit.line) for hit in found)


def plain_pickles(data: bytes) -> None:
    """What is let through is plain, and the same that Python's own unpickler makes of it."""
    try:
        value = plain_pickle.load_plain_pickle(data)
    except (plain_pickle.PickleTruncated, plain_pickle.PickleRefused):
        return
    assert repr(value) == repr(pickle.loads(data))


def dumps(data: bytes) -> None:
    """A dump is read, or refused in a sentence."""
    with contextlib.suppress(DumpUnreadable):
        dump_reader.parse_dump(data)


def dump_tables(data: bytes) -> None:
    """Dumps of two ranks, and what somebody reduced them to, come to a verdict, whatever stands in them."""
    for kind in (EvidenceKind.DUMP, EvidenceKind.REDUCED):
        pieces = [
            EvidenceFile(f"dump_rank_{rank}", kind, len(data), lambda: io.BytesIO(data))
            for rank in (0, 1)
        ]
        judge_dumps(dump_tables_of.read_dumps(pieces))


def heap(data: bytes) -> None:
    """A file is a piece, or several, or ignored in a sentence; what it unpacks to is bounded."""
    _FILE.write_bytes(data)
    _drain(lambda: gather.gather([str(_FILE)], LIMITS), len(data))


def standard_input(data: bytes) -> None:
    """As a file, but it comes by once, some bytes at a time."""
    spool = gather.SpoolFile(LIMITS.spool_bytes)
    source = io.BufferedReader(_Dripping(data))
    _drain(lambda: gather._read_stream(source, "-", LIMITS, spool), len(data))


class _Dripping(io.RawIOBase):
    """A pipe, which gives a few bytes at a time."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._rest = data

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        size = min(len(buffer), 700, len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _drain(found: Callable, size: int) -> None:
    read = 0
    for piece in found():
        if isinstance(piece, SkippedEvidence):
            assert piece.why
            assert "\n" not in piece.why
            continue
        with piece.open() as stream:
            while block := stream.read(1 << 16):
                read += len(block)
    assert (
        read <= 3 * (LIMITS.free_bytes + LIMITS.ratio * size) + 3 * size
    )  # UTF-16 grows when it is recoded


def history(data: bytes) -> None:
    """A history of collectives is one, or refused in a sentence; what it teaches is within bounds."""
    with contextlib.suppress(InvalidValue):
        found = parse_history(data, "fuzz")
        for each in found.troubles:
            assert advise(each, found.runs).least_limit_s <= 3e9
        history_facts(found, "fuzz")


def stacks(data: bytes) -> None:
    """Text of py-spy and faulthandler is read, or why not is said."""
    stack_text.from_py_spy(data, 7, "/job")
    stack_text.from_faulthandler(data.decode("utf-8", "replace"), "/job")
    stack_dumps.parse_processes(data, "fuzz")


def traces(data: bytes) -> None:
    """Read a trace file with damage: each 12 bytes of ``data`` are an offset and what is written there."""
    whole = bytearray(_TRACE)
    for at in range(0, len(data) - 4, 12):
        (offset,) = struct.unpack_from("<H", data, at)
        area = (0, trace_file.HEADER_BYTES + trace_file.GROUPS * trace_file.GROUP_BYTES)[
            data[at + 2] & 1
        ]
        value = data[at + 4 : at + 4 + (data[at + 3] & 7) + 1]
        begin = min(area + offset % trace_file.HEADER_BYTES, len(whole) - len(value))
        whole[begin : begin + len(value)] = value
    made = bytes(whole)
    trace_files.read_trace_files(
        [EvidenceFile("rank1.trace", EvidenceKind.TRACE, len(made), lambda: io.BytesIO(made))]
    )
    with contextlib.suppress(TraceUnreadable):
        assert len(redact_trace(made, "rank1.trace", Redactor())) == len(made)


def everything(data: bytes) -> None:
    """``diagnose`` comes to a verdict about any file, and to a page."""
    _FILE.write_bytes(data)
    found = diagnose([str(_FILE)], limits=LIMITS)
    assert found.exit_status in {0, 1, 2, 3}
    write_diagnosis_page(found)


def redaction(data: bytes) -> None:
    """Both searches find the same, and fixed redaction keeps the length."""
    quick, whole = Redactor(hosts=["node1"]), Redactor(hosts=["node1"])
    small = redact._MIN_SEARCH_BYTES
    try:
        redact._MIN_SEARCH_BYTES = 0
        made = quick.redact_bytes(data)
        redact._MIN_SEARCH_BYTES = 1 << 30
        assert made == whole.redact_bytes(data)
    finally:
        redact._MIN_SEARCH_BYTES = small
    assert quick.counts == whole.counts
    assert len(Redactor(hosts=["node1"], users=["ann"]).redact_bytes(data, fixed=True)) == len(data)
    redact_document(data, Redactor())
    b"".join(Redactor().redact_stream(io.BytesIO(data)))


#: By name: the target, and inputs to begin with.
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
    "heap": (heap, seeds.archives()),
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
        everything,
        [VERDICT, RANKS, PY_SPY, PY_SPY_JSON, FAULTHANDLER, LINE, json.dumps(DUMP).encode()],
    ),
    "redaction": (redaction, SECRETS),
    **files.TARGETS,
    **checkpoints.TARGETS,
}

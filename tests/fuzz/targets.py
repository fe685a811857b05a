"""What is fuzzed: each target takes any bytes and may raise what it promises, and nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import pickle

from holdfast.errors import DumpUnreadable
from holdfast.facts import flight_recorder, plain_pickle
from holdfast.facts.logs import lines, scan
from holdfast.facts.logs.scan import Scanner
from holdfast.facts.logs.signals import ROWS, fields

TABLE = tuple((row.name, row.find or row.expression, row.ignore_case) for row in ROWS)
_SLOW, _FAST = Scanner(TABLE), Scanner(TABLE)
_FAST._searched = scan.SMALL_BYTES  # it goes on to Hyperscan at once, where that is installed


def log_line(data: bytes) -> None:
    """A line is taken apart, and what it says is taken from it."""
    line = lines.parse(data, "fuzz", 1)
    assert "\n" not in lines.clean(data.split(b"\n")[0])
    assert line.rank is None or line.rank >= 0
    for row in ROWS:
        fields(row, line.text)


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
        value = plain_pickle.loads(data)
    except (plain_pickle.Truncated, plain_pickle.Refused):
        return
    assert repr(value) == repr(pickle.loads(data))


def dumps(data: bytes) -> None:
    """A dump is read, or refused in a sentence."""
    with contextlib.suppress(DumpUnreadable):
        flight_recorder.parse(data)


_ENTRY = {
    "record_id": 1,
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 1,
    "state": "scheduled",
}
_ENTRY |= {
    "profiling_name": "nccl:all_reduce",
    "input_sizes": ((1,),),
    "frames": [{"name": "f", "filename": "a.py", "line": 3}],
}
_DUMP = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}, "entries": [_ENTRY]}
_LINE = (
    b"[rank3]:[E1101 10:00:00.123 ProcessGroupNCCL.cpp:683] [PG ID 0 PG GUID 0 Rank 3] \x1b[31mCUDA out of memory\r\n"
)

#: By name: the target, and inputs to begin with.
TARGETS = {
    "log-line": (
        log_line,
        [_LINE, b"srun: error: n1: task 3: Killed", b"  5%|#  | 1/20 [00:01<00:20]\rKeyError: 'x'\n"],
    ),
    "log-scan": (log_scan, [_LINE * 3, b"\xff\xfe" + _LINE.decode().encode("utf-16-le"), b"\0" * 99 + _LINE]),
    "plain-pickle": (plain_pickles, [pickle.dumps(_DUMP, protocol) for protocol in (2, 4, 5)]),
    "dump": (dumps, [pickle.dumps(_DUMP, 2), json.dumps(_DUMP).encode()]),
}

"""Seed inputs: small files of every fuzzed format."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import tempfile
import zipfile
from pathlib import Path

from holdfast.core.trace_file import TraceNote, TraceWriter
from holdfast.diagnose.dumps import dump_set, reduced_dumps
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from tests.unit.core.fake_secrets import LINES, PEM

LINE = b"[rank3]:[E1101 10:00:00.123 ProcessGroupNCCL.cpp:683] [PG ID 0 PG GUID 0 Rank 3] \x1b[31mCUDA out of memory\r\n"
_ENTRY = {
    "record_id": 1,
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 1,
    "state": "scheduled",
    "profiling_name": "nccl:all_reduce",
    "input_sizes": ((1,),),
    "frames": [{"name": "f", "filename": "a.py", "line": 3}],
}
DUMP = {
    "version": "2.10",
    "pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}},
    "entries": [_ENTRY],
}
PY_SPY = b"""Process 7: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 7 (active+gil): "MainThread"
    f (train.py:3)
        Arguments:
            x: 1
    <module> (train.py:9)
Thread 8 (idle): "Thread-1"
    wait (threading.py:324)
"""
PY_SPY_JSON = json.dumps(
    [
        {
            "pid": 7,
            "thread_id": 7,
            "thread_name": "MainThread",
            "active": True,
            "owns_gil": True,
            "os_thread_id": 7,
            "frames": [
                {
                    "name": "f",
                    "filename": "/job/train.py",
                    "short_filename": "train.py",
                    "line": 3,
                    "locals": None,
                }
            ],
        }
    ]
).encode()
FAULTHANDLER = b"""Thread 0x00007f00 (most recent call first):
  File "/job/data.py", line 5 in load

Current thread 0x00007f01 (most recent call first):
  File "/job/train.py", line 3 in f
  File "/job/train.py", line 9 in <module>
"""
VERDICT = json.dumps(
    {
        "schema": "holdfast/1",
        "verdict": {
            "question": "What ended this job?",
            "root": {"cause": "host-oom-killed", "message": "killed", "subject": {"rank": 1}},
            "suspects": [],
            "ruled_out": [],
            "unseen": ["a"],
        },
    }
).encode()
RANKS = json.dumps(
    {
        "ranks": [
            {"rank": 0, "host": "n1", "pid": 7, "life": "dead", "started": 1.0, "progress": 2.0}
        ],
        "world_size": 2,
        "time": 3.0,
        "groups": [],
        "facts": [],
    }
).encode()
SECRETS = [*(line.encode() for line, _ in LINES.values()), PEM[0].encode()]


def reduced() -> bytes:
    """Return the reduced dumps of two ranks."""
    data = json.dumps(DUMP).encode()
    dumps = [
        EvidenceFile(f"dump_rank_{rank}", EvidenceKind.DUMP, len(data), lambda: io.BytesIO(data))
        for rank in (0, 1)
    ]
    return reduced_dumps.encode(dump_set.reduce_files(dumps).reduced)


def archives() -> list[bytes]:
    """Return a log, plain and in every supported archive format, also nested."""
    tar = _tar({"a/rank1.log": LINE, "b.json": RANKS})
    return [
        LINE,
        gzip.compress(LINE),
        bz2.compress(LINE),
        lzma.compress(LINE),
        tar,
        gzip.compress(tar),
        _zip({"a/rank1.log": LINE, "t.tgz": gzip.compress(tar)}),
        _tar({"z.zip": _zip({"l": LINE})}),
        LINE.decode().encode("utf-16"),
        b"\0" * 40 + LINE,
    ]


def _tar(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue().rstrip(b"\0") + bytes(1024)


def _zip(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def trace_file() -> bytes:
    """Return a trace file with notes of all kinds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank1.trace"
        writer = TraceWriter(path, rank=1, world_size=2, records=64)
        writer.note_json(
            TraceNote.FACTS,
            [{"text": "A_TOKEN=a1b2c3d4e5f6", "origin": "environment variable A_TOKEN"}],
        )
        writer.note_json(
            TraceNote.MEMBERS, {"name": "0", "ranks": [0, 1], "description": "default_pg"}
        )
        writer.note(TraceNote.WORD, "nccl")
        writer.note(TraceNote.SITE, 1, 41, "train", "/home/ann/train.py")
        writer.note_json(
            TraceNote.RAISED,
            {"type": "OSError", "text": "x", "file": "a.py", "line": 7, "function": "main"},
        )
        writer.phase("saving", 60.0)
        writer.map.flush()
        return path.read_bytes()

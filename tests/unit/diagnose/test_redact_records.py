"""Redacted documents, trace files and dumps contain no secret and remain readable."""

from __future__ import annotations

import pickle

import msgspec
import pytest

from holdfast.core.errors import DumpUnreadable, TraceCorrupt, TraceTruncated
from holdfast.core.redaction.redact import Redactor
from holdfast.core.trace_file import TraceNote, TraceWriter
from holdfast.diagnose.bundle.redact_records import (
    redact_data,
    redact_document,
    redact_dump,
    redact_trace,
)
from holdfast.watcher.flight_recorder import dump_reader
from holdfast.watcher.trace_reader import TraceReading
from tests.unit.core.fake_secrets import LINES, random_text
from tests.unit.diagnose import dump_factory


def test_data_is_redacted_by_key():
    data = {
        "db": {"password": "abc", "port": 5432},
        "env": [{"name": "X_TOKEN", "value": "a1b2c3d4e5f6"}],
        "argv": ["--api-key", "xyz", "--lr", "1"],
        "tokens": 17,
        "max_tokens": "2048",
        "rank": 3,
    }
    clean = redact_data(data, Redactor())
    assert clean["db"] == {"password": "<redacted:password>", "port": 5432}
    assert clean["env"][0]["value"] == "<redacted:password>"
    assert clean["argv"] == ["--api-key", "<redacted:password>", "--lr", "1"]
    assert (clean["tokens"], clean["max_tokens"], clean["rank"]) == (17, "2048", 3)


def test_redacted_document_is_valid_json():
    data = msgspec.json.format(msgspec.json.encode({"lines": [line for line, _ in LINES.values()]}))
    clean = redact_document(data, Redactor())
    assert len(msgspec.json.decode(clean)["lines"]) == len(LINES)
    assert [
        secret for _, secrets in LINES.values() for secret in secrets if secret.encode() in clean
    ] == []


def write_trace_with_secrets(path):
    """Return a trace file with a secret in every text field."""
    writer = TraceWriter(path, rank=1, world_size=2, records=64)
    facts = [
        {"text": f"PLANTED_{n}={line}", "origin": "environment variable"}
        for n, (line, _) in enumerate(LINES.values())
    ]
    facts.append(
        {
            "text": "MY_PASSWORD=with blanks in it",
            "origin": "environment variable MY_PASSWORD",
            "host": "a",
        }
    )
    writer.note_json(TraceNote.FACTS, facts)
    for number, (line, _) in enumerate(LINES.values()):
        writer.note(TraceNote.WORD, line)
        writer.note(TraceNote.SITE, number, 41, "train", f"/home/janedoe/{number}.py")
    raised = {
        "type": "OSError",
        "text": "\n".join(line for line, _ in LINES.values()),
        "file": "/home/janedoe/t.py",
        "line": 7,
        "function": "main",
    }
    writer.note_json(TraceNote.RAISED, raised)
    writer.phase("password=hunter2", 60.0)
    writer.map.flush()
    return path.read_bytes()


def test_redacted_trace_file_is_readable(tmp_path):
    data = write_trace_with_secrets(tmp_path / "rank1.trace")
    clean = redact_trace(data, "rank1.trace", Redactor())
    assert len(clean) == len(data)
    secrets = [secret for _, found in LINES.values() for secret in found]
    assert [
        secret for secret in (*secrets, "with blanks in it", "hunter2") if secret.encode() in clean
    ] == []
    (tmp_path / "clean.trace").write_bytes(clean)
    before, after = TraceReading(tmp_path / "rank1.trace"), TraceReading(tmp_path / "clean.trace")
    notes = after.read_notes()
    assert after.header == before.header
    assert (notes.dropped, len(notes.words), len(notes.facts)) == (0, len(LINES), len(LINES) + 1)
    assert notes.sites[0].line == 41
    assert notes.raised is not None
    assert notes.raised.type == "OSError"


def test_trace_file_without_secrets_is_unchanged(tmp_path):
    writer = TraceWriter(tmp_path / "rank0.trace", rank=0, world_size=2, records=64)
    writer.note_json(
        TraceNote.FACTS, [{"text": "NCCL_DEBUG=INFO", "origin": "environment variable NCCL_DEBUG"}]
    )
    writer.note(TraceNote.SITE, 1, 41, "train", "/opt/job/träin.py")
    writer.map.flush()
    data = (tmp_path / "rank0.trace").read_bytes()
    assert redact_trace(data, "rank0.trace", Redactor()) == data


def test_bytes_between_areas_of_a_trace_file_are_dropped(tmp_path):
    data = bytearray(write_trace_with_secrets(tmp_path / "rank1.trace"))
    data[3000:3010] = data[300:310] = b"hidden now"
    assert b"hidden" not in redact_trace(bytes(data), "rank1.trace", Redactor())


@pytest.mark.parametrize(("size", "error"), [(100, TraceTruncated), (70_000, TraceTruncated)])
def test_truncated_trace_file_is_refused(tmp_path, size, error):
    data = write_trace_with_secrets(tmp_path / "rank1.trace")
    with pytest.raises(error):
        redact_trace(data[:size], "rank1.trace", Redactor())
    with pytest.raises(TraceCorrupt):
        redact_trace(bytes(len(data)), "rank1.trace", Redactor())


def make_dump_with_secrets():
    secret = "h" + "f_" + random_text("dump", 34)
    frames = [
        *dump_factory.FRAMES,
        {"name": f"login_{secret}", "filename": "/home/janedoe/train.py", "line": 3},
    ]
    entries = [
        dump_factory.entry(n, frames=frames, process_group=("0", f"password={secret}"))
        for n in range(1, 50)
    ]
    return dump_factory.content(*entries, env={"MY_SECRET": "swordfish"}), (
        secret,
        "swordfish",
        "janedoe",
    )


@pytest.mark.parametrize("written", [dump_factory.written, msgspec.json.encode])
def test_redacted_dump_is_readable(written):
    content, secrets = make_dump_with_secrets()
    data = written(content)
    clean = redact_dump(data, "nccl_trace_rank_1", Redactor())
    assert [secret for secret in secrets if secret.encode() in clean] == []
    before, after = dump_reader.parse_dump(data, "rank_1"), dump_reader.parse_dump(clean, "rank_1")
    assert [entry.collective_sequence for entry in after.entries] == list(range(1, 50))
    assert after.entries[0].site == before.entries[0].site
    assert len(clean) < 1.2 * len(data)


@pytest.mark.parametrize("data", [b"\x80\x02}q", b"{", pickle.dumps({"version": print})])
def test_unreadable_dump_is_refused(data):
    with pytest.raises(DumpUnreadable):
        redact_dump(data, "nccl_trace_rank_1", Redactor())

"""Written files are scanned again: remaining secrets are redacted, otherwise the file is omitted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from holdfast.core.errors import TraceUnreadable
from holdfast.core.redaction.redact import Redactor
from holdfast.diagnose.bundle.evidence_files import BundleSource, find_sources, open_source
from holdfast.diagnose.bundle.redacted_copy import (
    MAX_ROUNDS,
    redact_source,
    write_verified,
)
from holdfast.diagnose.evidence import EvidenceKind
from tests.unit.core.fake_secrets import LINES
from tests.unit.diagnose.test_redact_records import write_trace_with_secrets

LOG = BundleSource(Path(), "a.log", EvidenceKind.LOG, "utf-8")
SECRET = "password = swordfish\n"


def test_second_round_redacts_remaining_secrets(tmp_path):
    found = write_verified([b"step 1\n", SECRET.encode()], tmp_path / "a.log", LOG, Redactor)
    assert (tmp_path / "a.log").read_bytes() == b"step 1\npassword = <redacted:password>\n"
    assert found == Counter(password=1)
    assert [file.name for file in tmp_path.iterdir()] == ["a.log"]


def test_clean_content_is_written_unchanged(tmp_path):
    assert not write_verified([b"step 1\n"], tmp_path / "a.log", LOG, Redactor)
    assert (tmp_path / "a.log").read_bytes() == b"step 1\n"


def test_file_that_cannot_be_cleaned_is_omitted(tmp_path):
    class Sloppy(Redactor):
        def redact_stream(self, source, **_):
            self.counts["password"] += 1
            yield source.read()

    assert write_verified([SECRET.encode()], tmp_path / "a.log", LOG, Sloppy) == Counter(
        password=MAX_ROUNDS
    )
    assert list(tmp_path.iterdir()) == []


def test_unreadable_trace_file_is_refused(tmp_path):
    write_trace_with_secrets(tmp_path / "rank1.trace")
    (found,) = find_sources([tmp_path / "rank1.trace"])
    with open_source(found) as excerpt:
        (redacted,) = redact_source(found, excerpt, Redactor())
    assert not write_verified([redacted], tmp_path / "clean.trace", found, Redactor)
    with pytest.raises(TraceUnreadable):
        write_verified([redacted[:300]], tmp_path / "cut.trace", found, Redactor)


def test_page_keeps_its_tags(tmp_path):
    line, (secret,) = LINES["python"]
    shown = line.replace('"', "&quot;")
    text = (
        f"<!doctype html><p>a &amp; b &lt; c</p><p>{shown}</p><script>if (a < b && c) {{}}</script>"
    )
    (tmp_path / "report.html").write_text(text)
    (found,) = find_sources([tmp_path / "report.html"])
    with open_source(found) as excerpt:
        (redacted,) = redact_source(found, excerpt, Redactor())
    clean = shown.replace(secret, "&lt;redacted:password&gt;")
    assert redacted.decode() == text.replace(shown, clean)

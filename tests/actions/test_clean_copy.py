"""What was written is read again: a secret that is found then goes too, and what cannot be cleaned is not there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from holdfast.actions.clean_copy import MOST_ROUNDS, cleaned, write
from holdfast.actions.evidence_files import Found, find, opened
from holdfast.actions.redact import Redactor
from holdfast.errors import BoxUnreadable
from holdfast.facts.evidence import Kind
from tests.actions.secrets_made_up import LINES
from tests.actions.test_redact import planted_box

LOG = Found(Path(), "a.log", Kind.LOG, "utf-8")
SECRET = "password = swordfish\n"


def test_what_one_round_has_missed_the_next_takes_out(tmp_path):
    found = write([b"step 1\n", SECRET.encode()], tmp_path / "a.log", LOG, Redactor)
    assert (tmp_path / "a.log").read_bytes() == b"step 1\npassword = <redacted:password>\n"
    assert found == Counter(password=1)
    assert [file.name for file in tmp_path.iterdir()] == ["a.log"]


def test_what_is_clean_is_written_as_it_is(tmp_path):
    assert not write([b"step 1\n"], tmp_path / "a.log", LOG, Redactor)
    assert (tmp_path / "a.log").read_bytes() == b"step 1\n"


def test_what_never_gets_clean_is_not_given_away(tmp_path):
    class Sloppy(Redactor):
        def stream(self, source, **_):
            self.counts["password"] += 1
            yield source.read()

    assert write([SECRET.encode()], tmp_path / "a.log", LOG, Sloppy) == Counter(password=MOST_ROUNDS)
    assert list(tmp_path.iterdir()) == []


def test_a_box_that_its_reader_refuses_is_not_given_away(tmp_path):
    planted_box(tmp_path / "rank1.box")
    (found,) = find([tmp_path / "rank1.box"])
    with opened(found) as excerpt:
        (made,) = cleaned(found, excerpt, Redactor())
    assert not write([made], tmp_path / "clean.box", found, Redactor)
    with pytest.raises(BoxUnreadable):
        write([made[:300]], tmp_path / "cut.box", found, Redactor)


def test_a_page_keeps_its_tags(tmp_path):
    line, (secret,) = LINES["python"]
    shown = line.replace('"', "&quot;")
    text = f"<!doctype html><p>a &amp; b &lt; c</p><p>{shown}</p><script>if (a < b && c) {{}}</script>"
    (tmp_path / "report.html").write_text(text)
    (found,) = find([tmp_path / "report.html"])
    with opened(found) as excerpt:
        (made,) = cleaned(found, excerpt, Redactor())
    clean = shown.replace(secret, "&lt;redacted:password&gt;")
    assert made.decode() == text.replace(shown, clean)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.text import (
    encodable,
    escape_invisible,
    format_duration,
    format_percent,
    one_line,
    shorten,
)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain – text ✗", "plain – text ✗"),  # noqa: RUF001 - typographic on purpose
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb\x07", "a\\rb\\x07"),
        ("first\nsecond", "first\nsecond"),
        ("name\udcff.py", "name\\udcff.py"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("no\u00a0break", "no break"),
        ("line\u2028sep", "line sep"),
    ],
)
def test_control_characters_become_visible(raw, shown):
    assert escape_invisible(raw) == shown


@given(st.text())
def test_escaped_text_is_printable(text):
    shown = escape_invisible(text)
    assert shown.replace("\n", "").isprintable()
    shown.encode("utf-8")
    assert "\n" not in one_line(text)


@given(st.text(), st.sampled_from(["ascii", "latin-1", "utf-8", "cp1252", "no-such-encoding"]))
def test_encodable_fits_every_encoding(text, encoding):
    fit = encodable(escape_invisible(text), encoding)
    fit.encode("ascii" if encoding == "no-such-encoding" else encoding)


def test_symbols_have_ascii_replacements_of_one_character():
    assert encodable("✗ rank 2 — train.py • … ─╮", "ascii") == "x rank 2 - train.py * ~ -+"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0000123, "12 µs"),
        (0.012, "12 ms"),
        (1.0, "1.00 s"),
        (6.1, "6.1 s"),
        (59.94, "59.9 s"),
        (250, "4 min 10 s"),
        (7500, "2 h 05 min"),
        (-0.5, "−500 ms"),  # noqa: RUF001
        (float("nan"), "an unknown time"),
    ],
)
def test_durations(seconds, shown):
    assert format_duration(seconds) == shown


def test_only_certainty_is_one_hundred_percent():
    assert [format_percent(share) for share in (0.93, 0.999, 1.0)] == ["93%", "99%", "100%"]


def test_a_text_is_shortened_between_words() -> None:
    assert shorten("Connection reset by peer", 24) == "Connection reset by peer"
    assert shorten("Connection reset by peer", 20) == "Connection reset by…"
    assert shorten("Connection reset, by peer", 18) == "Connection reset…"
    assert shorten("x" * 30, 10) == "xxxxxxxxx…"

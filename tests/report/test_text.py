from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.report.text import duration, encodable, one_line, percent, visible


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
    assert visible(raw) == shown


@given(st.text())
def test_whatever_comes_in_nothing_but_printable_characters_and_line_breaks_comes_out(text):
    shown = visible(text)
    assert shown.replace("\n", "").isprintable()
    shown.encode("utf-8")
    assert "\n" not in one_line(text)


@given(st.text(), st.sampled_from(["ascii", "latin-1", "utf-8", "cp1252", "no-such-encoding"]))
def test_every_encoding_can_write_what_is_made_for_it(text, encoding):
    fit = encodable(visible(text), encoding)
    fit.encode("ascii" if encoding == "no-such-encoding" else encoding)


def test_symbols_have_twins_of_one_character():
    assert encodable("✗ rank 2 — train.py • … ─╮", "ascii") == "x rank 2 - train.py * ~ -+"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0000123, "12 µs"), (0.012, "12 ms"), (1.0, "1.00 s"), (6.1, "6.1 s"), (59.94, "59.9 s"),
        (250, "4 min 10 s"), (7500, "2 h 05 min"), (-0.5, "−500 ms"), (float("nan"), "an unknown time"),  # noqa: RUF001
    ],
)  # fmt: skip
def test_durations(seconds, shown):
    assert duration(seconds) == shown


def test_only_certainty_is_one_hundred_percent():
    assert [percent(share) for share in (0.93, 0.999, 1.0)] == ["93 %", "99 %", "100 %"]

"""The results of chaos: kept, added to, and made into a page."""

from __future__ import annotations

import pytest

from holdfast.errors import BadValue
from holdfast.report import reliability
from holdfast.report.reliability import Outcome, Results

KILLED = Outcome(name="sigkill-middle", fault="sigkill", moment="middle", mode="ddp", ranks=2, causes=("rank-killed",),
                 redone=4, took_s=9.4, peace_s=5.0)  # fmt: skip
STOPPED = Outcome(name="sigstop-start", fault="sigstop", moment="start", mode="ddp", ranks=2, wrong=("it hung",))
UNPLAYED = Outcome(name="host-memory", fault="memory", moment="middle", mode="ddp", ranks=2, skipped="needs root")


def test_newer_outcomes_take_the_place_of_older_ones(tmp_path):
    path = tmp_path / "results.json"
    assert reliability.read(path) == Results()
    first = Results().having([KILLED, STOPPED], 1.0, {"cores": "2"})
    reliability.write(path, first.having([Outcome(name="sigstop-start", fault="sigstop", moment="start", mode="ddp",
                                                  ranks=2)], 2.0, {"cores": "4"}))  # fmt: skip
    found = reliability.read(path)
    assert (found.at, found.machine) == (2.0, {"cores": "4"})
    assert [(each.name, each.survived) for each in found.outcomes] == [
        ("sigkill-middle", True),
        ("sigstop-start", True),
    ]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"schema": "other"}', b"\xff\xfe", b'{"outcomes": [1]}'])
def test_a_file_that_is_none_is_one_sentence(tmp_path, content):
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(BadValue):
        reliability.read(tmp_path / "results.json")


def test_the_page():
    page = reliability.page(Results().having([KILLED, STOPPED, UNPLAYED], 0.0, {"cores": "2"}), "<!-- note -->\n")
    assert "Last run: 1970-01-01, cores 2. 1 of 3 scenarios were survived." in page
    assert "| sigkill | 9 |  | rank-killed |" in page
    assert "| sigstop |  | start: **no** (0) |  |" in page
    assert "- `sigstop-start`: it hung\n- `host-memory`: needs root\n" in page

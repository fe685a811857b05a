"""The results of chaos: kept, added to, and made into a page."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace

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
    again = replace(UNPLAYED, name="host-memory-2", hosts=2)
    page = reliability.page(
        Results().having([KILLED, STOPPED, UNPLAYED, again], 0.0, {"cores": "2"}), "<!-- note -->\n"
    )
    summary = "Of 4 scenarios 1 were survived, 2 were not played, and 1 were not survived."
    assert f"Last run: 1970-01-01, cores 2. {summary}\n" in page
    assert "| sigkill | 9 |  | rank-killed |" in page
    assert "| sigstop |  | start: **no** (0) |  |" in page
    assert "- `sigstop-start`: it hung\n- `host-memory`, `host-memory-2`: needs root\n" in page


def test_what_was_not_played_is_marked_and_what_is_not_known_any_more_goes():
    known = [replace(UNPLAYED, skipped="was not played yet"), replace(KILLED, skipped="was not played yet")]
    found = Results().having([KILLED, STOPPED], 0.0, {}).of(known)
    assert [(each.name, each.skipped) for each in found.outcomes] == [
        ("host-memory", "was not played yet"), ("sigkill-middle", ""),
    ]  # fmt: skip


def test_two_may_add_at_once(tmp_path):
    """Four processes add fifty outcomes each to one file: none is lost."""
    path = tmp_path / "results.json"
    script = (
        "import sys; from pathlib import Path; from holdfast.report import reliability as r\n"
        "for n in range(50):\n"
        " r.add(Path(sys.argv[1]), r.Outcome(name=sys.argv[2] + str(n), fault='', moment='', mode='', ranks=2), {})"
    )
    made = [subprocess.Popen([sys.executable, "-c", script, path, f"{writer}-"]) for writer in range(4)]
    assert [each.wait(60) for each in made] == [0, 0, 0, 0]
    assert len(reliability.read(path).outcomes) == 200

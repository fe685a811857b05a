"""The results file of chaos runs and the page generated from it."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace

from docs import reliability_page
from holdfast.chaos import reliability
from holdfast.chaos.reliability import Results, ScenarioOutcome
from holdfast.core.errors import InvalidValue

KILLED = ScenarioOutcome(
    name="sigkill-middle",
    fault="sigkill",
    moment="middle",
    mode="ddp",
    ranks=2,
    causes=("rank-killed",),
    repeated_steps=4,
    took_s=9.4,
    undisturbed_s=5.0,
)
STOPPED = ScenarioOutcome(
    name="sigstop-start",
    fault="sigstop",
    moment="start",
    mode="ddp",
    ranks=2,
    violations=("it hung",),
)
SKIPPED = ScenarioOutcome(
    name="host-memory", fault="memory", moment="middle", mode="ddp", ranks=2, skipped="needs root"
)


def test_newer_outcomes_replace_older_ones(tmp_path):
    path = tmp_path / "results.json"
    assert reliability.read_outcomes(path) == Results()
    first = Results().merged_with([KILLED, STOPPED], 1.0, {"cores": "2"})
    reliability.write(
        path,
        first.merged_with(
            [
                ScenarioOutcome(
                    name="sigstop-start", fault="sigstop", moment="start", mode="ddp", ranks=2
                )
            ],
            2.0,
            {"cores": "4"},
        ),
    )
    found = reliability.read_outcomes(path)
    assert (found.at, found.machine) == (2.0, {"cores": "4"})
    assert [(each.name, each.passed) for each in found.outcomes] == [
        ("sigkill-middle", True),
        ("sigstop-start", True),
    ]


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"schema": "other"}', b"\xff\xfe", b'{"outcomes": [1]}']
)
def test_invalid_results_file(tmp_path, content):
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(InvalidValue):
        reliability.read_outcomes(tmp_path / "results.json")


def test_the_page():
    again = replace(SKIPPED, name="host-memory-2", hosts=2)
    page = reliability_page.render_page(
        Results().merged_with([KILLED, STOPPED, SKIPPED, again], 0.0, {"cores": "2"}),
        "<!-- note -->\n",
    )
    summary = "1 of 4 scenarios passed, 1 failed, 2 not run."
    assert f"Last run: 1970-01-01, cores 2. {summary}\n" in page
    assert "| sigkill | 9 |  | rank-killed |" in page
    assert "| sigstop |  | start: **failed** (0) |  |" in page
    assert "- `sigstop-start`: it hung\n- `host-memory`, `host-memory-2`: needs root\n" in page


def test_missing_and_unknown_scenarios():
    known = [
        replace(SKIPPED, skipped="was not played yet"),
        replace(KILLED, skipped="was not played yet"),
    ]
    found = reliability_page.select_outcomes(
        Results().merged_with([KILLED, STOPPED], 0.0, {}), known
    )
    assert [(each.name, each.skipped) for each in found.outcomes] == [
        ("host-memory", "was not played yet"),
        ("sigkill-middle", ""),
    ]


def test_concurrent_additions(tmp_path):
    """Four processes add fifty outcomes each to one file; none is lost."""
    path = tmp_path / "results.json"
    script = (
        "import sys; from pathlib import Path; from holdfast.chaos import reliability as r\n"
        "for n in range(50):\n"
        " r.add_outcome(Path(sys.argv[1]), r.ScenarioOutcome(name=sys.argv[2] + str(n), fault='',"
        " moment='', mode='', ranks=2), {})"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, path, f"{writer}-"]) for writer in range(4)
    ]
    assert [each.wait(60) for each in processes] == [0, 0, 0, 0]
    assert len(reliability.read_outcomes(path).outcomes) == 200

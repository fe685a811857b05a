"""Reading a run folder that is of another version, half deleted, stale, or has two leaders."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.ledger import Ledger, LedgerEvent, LedgerRecord
from holdfast.core.live_state import LiveState, SeriesPoint
from holdfast.serve.live import reader, reports, runs
from holdfast.serve.metrics import samples
from holdfast.serve.terminal import rows
from holdfast.watcher.live_columns import build_live_state
from tests.unit.serve.served import write_check
from tests.unit.serve.simulated_job import simulate

AT = 1_700_000_000.0


def state(generation: int = 0, at: float = AT, by: str = "node 0") -> LiveState:
    built = build_live_state(simulate(8, at, step=5), {}, [])
    return replace(built, generation=generation, written_by=by)


def write(folder, node: int, content: LiveState) -> None:
    (folder / f"live-{node}.json").write_bytes(msgspec.json.encode(content))


def test_a_fresh_state_has_no_problems(tmp_path):
    write(tmp_path, 0, state())
    reading = reader.read_live(tmp_path, AT + 2)
    assert reading.state == state()
    assert (reading.stale, reading.problems) == (False, ())


def test_of_two_leaders_the_newest_generation_wins_and_the_other_is_named(tmp_path):
    write(tmp_path, 0, state(generation=1, at=AT + 3, by="node 0 a"))
    write(tmp_path, 1, state(generation=2, at=AT, by="node 1 b"))
    reading = reader.read_live(tmp_path, AT + 4)
    assert reading.state.written_by == "node 1 b"
    assert reading.problems == (
        "two leaders write the live state: node 1 b (generation 2) is shown, node 0 a (generation 1) is ignored",
    )


def test_a_leader_that_ended_long_ago_is_no_rival(tmp_path):
    write(tmp_path, 0, state(generation=1, at=AT - 600))
    write(tmp_path, 1, state(generation=2))
    assert reader.read_live(tmp_path, AT).problems == ()


def test_a_stale_state_is_shown_and_called_out_of_date(tmp_path):
    write(tmp_path, 0, state())
    reading = reader.read_live(tmp_path, AT + 125)
    assert reading.state is not None
    assert reading.stale
    assert reading.problems == ("the live state is out of date: written 2 min 05 s ago",)


def test_the_state_of_a_run_that_ended_is_not_out_of_date(tmp_path):
    write(tmp_path, 0, state())
    Ledger(tmp_path).add(LedgerRecord(event=LedgerEvent.ENDED, at=AT, host="a", status=0))
    reading = reader.read_live(tmp_path, AT + 125)
    assert reading.stale
    assert reading.problems == ("the run ended with status 0; this is its last state",)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            b'{"schema": "holdfast/live/9", "ranks": 3}',
            "has the schema 'holdfast/live/9', not 'holdfast/live/1'",
        ),
        (b'{"schema": "holdfast/live/1"', "is not valid"),
        (b"", "is not valid"),
        (b'{"schema": "holdfast/live/1", "ranks": {"rank": [1]}}', "its columns differ in length"),
        (msgspec.json.encode(replace(state(), nodes=())), "an index in node is out of range"),
        (b"[" * 100_000, "is not valid"),
    ],
)
def test_a_document_that_cannot_be_read_is_one_sentence(tmp_path, content, problem):
    (tmp_path / "live-0.json").write_bytes(content)
    reading = reader.read_live(tmp_path, AT)
    assert reading.state is None
    (sentence,) = reading.problems
    assert sentence.startswith("live-0.json ")
    assert problem in sentence


def test_a_folder_that_disappears_is_empty(tmp_path):
    assert reader.read_live(tmp_path / "gone", AT).state is None
    assert reader.read_series(tmp_path / "gone") == ()
    assert runs.read_past(tmp_path / "gone").events == ()


def test_a_series_skips_what_it_cannot_read_and_keeps_the_newest_point(tmp_path):
    lines = [msgspec.json.encode(SeriesPoint(at=float(second))) for second in range(1000)]
    torn = lines[-1][:20]
    (tmp_path / "live-0.jsonl").write_bytes(b"\n".join([b"{}", b'{"at": "x"}', *lines, torn]))
    points = reader.read_series(tmp_path, columns=100)
    assert 90 <= len(points) <= 100
    assert points[-1].at > 980


def test_a_part_of_a_series_has_more_detail(tmp_path):
    lines = [msgspec.json.encode(SeriesPoint(at=float(second))) for second in range(1000)]
    (tmp_path / "live-0.jsonl").write_bytes(b"\n".join(lines))
    points = reader.read_series(tmp_path, columns=100, within=(300.0, 349.0))
    assert [point.at for point in points] == [float(second) for second in range(300, 350)]
    assert len(reader.read_series(tmp_path, columns=100, within=(300.0, 899.0))) == 100


def test_reports_are_read_newest_first_and_others_are_named(tmp_path):
    write_check(tmp_path / "check-a.json")
    (tmp_path / "env-b.json").write_text('{"schema": "holdfast/1", "command": "env"}')
    os.utime(tmp_path / "env-b.json", (1, 1))
    (tmp_path / "check-c.json").write_text('{"schema": "holdfast/9", "command": "check"}')
    (tmp_path / "check-d.json").write_text("{")
    found, problems = reports.read_reports([tmp_path, tmp_path / "gone", tmp_path])
    assert [(each.file, len(each.findings)) for each in found] == [
        ("check-a.json", 1),
        ("env-b.json", 0),
    ]
    assert found[0].states == {"ok": 1, "unknown": 1}
    assert problems[0] == "check-c.json has the schema 'holdfast/9', not 'holdfast/1'"
    assert problems[1].startswith("check-d.json is not the output of a command with --json")


def test_an_incident_without_verdict_and_a_ledger_of_another_version_are_named(tmp_path):
    (tmp_path / "incidents" / "0").mkdir(parents=True)
    (tmp_path / "ledger.jsonl").write_text('{"schema": "holdfast/ledger/9"}\n')
    past = runs.read_past(tmp_path)
    assert len(past.problems) == 2
    assert "contains no line of the schema holdfast/ledger/1" in past.problems[0]
    assert past.problems[1] == "incident 0 has no verdict: its writer died, or it was deleted"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(["ranks", "nodes", "calls", "waits", "at", "lives"]),
)
def test_no_field_of_any_content_is_an_error(tmp_path_factory, content, name):
    folder = tmp_path_factory.mktemp("run")
    document = msgspec.to_builtins(state()) | {name: content}
    (folder / "live-0.json").write_bytes(msgspec.json.encode(document))
    reading = reader.read_live(folder, AT)
    assert (reading.state is None) == bool(reading.problems) or reading.stale
    if reading.state is not None:
        samples.collect_run(runs.RunHead(name="run", path="/run"), reading)
        rows.build_rows(reading.state)
        rows.group_lines(reading.state)

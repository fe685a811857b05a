"""Flight-recorder dumps: real gloo dumps, several NCCL versions, and malicious files."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import DumpCorrupt, DumpTruncated, DumpUnreadable, DumpVersion
from holdfast.core.rank_table import SourceLine
from holdfast.watcher.flight_recorder import dump_reader
from holdfast.watcher.flight_recorder import entries as flight_recorder_entries
from holdfast.watcher.flight_recorder.dump_reader import (
    GroupStatus,
    RecordedGroup,
    parse_dump,
    rank_in_name,
    read,
)
from holdfast.watcher.flight_recorder.entries import EntryState
from tests.forked_programs import RunningProgram
from tests.unit.diagnose.dump_factory import BEGAN_NS, content, entry, until, written

GLOO = Path(__file__).with_name("record_gloo.py")


def line_of(mark: str) -> int:
    """Return the line of the script with the mark."""
    return next(
        at
        for at, line in enumerate(GLOO.read_text().splitlines(), 1)
        if line.endswith(f"# LINE {mark}")
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with real dumps of two ranks."""
    folder = tmp_path_factory.mktemp("gloo")
    ranks = [RunningProgram(GLOO, rank, folder / "store", folder, folder=folder) for rank in (0, 1)]
    for each in ranks:
        done = each.result()
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_a_real_gloo_dump_is_read(recorded: Path) -> None:
    before = time.time()
    dump = read(recorded / "trace_rank_1")
    assert (int(dump.version.split(".")[0]), dump.rank, dump.dropped) == (2, 1, 0)
    calls = [
        (each.group, each.collective_sequence, each.name, each.backend) for each in dump.entries
    ]
    assert calls == [
        ("0", 1, "all_reduce", "gloo"),
        ("0", 2, "all_reduce", "gloo"),
        ("0", 3, "all_reduce", "gloo"),
        ("0", 4, "broadcast", "gloo"),
        (dump.entries[4].group, 1, "all_reduce", "gloo"),
    ]
    assert dump.entries[0].site == SourceLine(str(GLOO), line_of("all_reduce"), "<module>")
    assert dump.entries[3].site == SourceLine(str(GLOO), line_of("broadcast"), "<module>")
    assert (dump.entries[3].input_sizes, dump.entries[3].input_dtypes) == (((7,),), ("Double",))
    assert before - 100 < dump.entries[0].created <= dump.entries[1].created < before + 1
    assert all(each.finished and each.state is EntryState.SCHEDULED for each in dump.entries[:3])
    assert [group.description for group in dump.groups] == ["default_pg", "pair"]
    first = dump.groups[0].status
    assert first is not None
    assert first.enqueued == 4


@pytest.mark.slow
def test_the_json_dump_equals_the_pickle_without_call_sites(recorded: Path) -> None:
    one, other = read(recorded / "trace_rank_0"), read(recorded / "trace_rank_0.json")
    assert (other.version, other.rank, other.dropped) == (one.version, 0, 0)
    assert [group.name for group in other.groups] == [group.name for group in one.groups]
    for each, same in zip(one.entries, other.entries, strict=True):
        assert (each.name, each.group, each.collective_sequence) == (
            same.name,
            same.group,
            same.collective_sequence,
        )
        assert (each.input_sizes, each.created, same.site) == (same.input_sizes, same.created, None)


def test_an_nccl_dump_is_read() -> None:
    dump = parse_dump(written(until(31, 30)), "comm_lib_trace_rank_12")
    assert (dump.version, dump.library, dump.rank, dump.dropped) == ("2.10", "2.27.5", 12, 0)
    assert dump.groups == (RecordedGroup("0", "default_pg", (0, 1), 0, GroupStatus(31, -1, 30)),)
    done, stuck = dump.entries[-2:]
    assert (done.state, done.retired, done.finished) == (EntryState.COMPLETED, True, True)
    assert (done.created, done.completed) == (BEGAN_NS / 1e9 + 30, BEGAN_NS / 1e9 + 30.5)
    assert (stuck.state, stuck.completed, stuck.finished) == (EntryState.SCHEDULED, None, False)
    assert (stuck.name, stuck.backend, stuck.collective_sequence) == ("all_reduce", "nccl", 31)
    assert (stuck.input_sizes, stuck.input_dtypes) == (((4096, 8),), ("BFloat16",))
    assert stuck.site == SourceLine("/job/train.py", 41, "train_step")


def test_an_nccl_call_that_timed_out_is_not_finished() -> None:
    (call,) = parse_dump(written(content(entry(1, "scheduled", retired=True)))).entries
    assert not call.finished


def test_sends_and_receives_name_their_peer() -> None:
    calls = [
        entry(1, profiling_name="nccl:send 0->3", is_p2p=True, p2p_seq_id=1, collective_seq_id=0),
        entry(2, profiling_name="nccl:recv 0<-2", is_p2p=True, p2p_seq_id=1, collective_seq_id=0),
    ]
    send, receive = parse_dump(written(content(*calls))).entries
    assert (send.name, send.peer, send.is_point_to_point) == ("send", 3, True)
    assert (receive.name, receive.peer, receive.point_to_point_sequence) == ("recv", 2, 1)


def without(call: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return an entry without these keys."""
    return {key: value for key, value in call.items() if key not in names}


def test_earlier_versions_lack_keys_and_write_others() -> None:
    old = without(
        entry(5, "started"), "process_group", "frames", "collective_seq_id", "is_p2p", "thread_id"
    )
    first = parse_dump(
        written(
            without(content(version="2.0") | {"entries": [old | {"seq_id": 5}]}, "comm_lib_version")
        )
    )
    assert (
        first.entries[0].group,
        first.entries[0].collective_sequence,
        first.entries[0].site,
    ) == ("0", 5, None)
    assert first.entries[0].state is EntryState.STARTED
    later = content(entry(5, collective_seq_id=5), version="2.9") | {"nccl_version": "2.27.3"}
    texts = entry(
        6,
        collective_seq_id="6",
        p2p_seq_id="0",
        input_dtypes="float32",
        process_group=["0", "default_pg"],
    )
    both = parse_dump(written(without(later, "comm_lib_version") | {"entries": [entry(5), texts]}))
    assert (both.library, both.entries[1].collective_sequence) == ("2.27.3", 6)
    assert both.entries[1].input_dtypes == ("float32",)


def test_later_minor_versions_are_read_and_other_majors_are_refused() -> None:
    assert (
        parse_dump(written(content(entry(1, surprise=[1]), version="2.37", more={}))).dropped == 0
    )
    with pytest.raises(DumpVersion, match=r"version 3\.0"):
        parse_dump(written(content(version="3.0")))


def test_json_numbers_as_text_and_missing_lists_are_read() -> None:
    dump = content(
        entry(1, time_discovered_started_ns=0),
        entry(2, "scheduled", time_discovered_completed_ns=0),
    )
    dump["pg_status"] = {"0": {key: str(value) for key, value in dump["pg_status"]["0"].items()}}
    found = parse_dump(json.dumps(dump).encode())
    assert (found.entries[0].completed, found.entries[1].completed) == (BEGAN_NS / 1e9 + 1.5, None)
    assert found.groups[0].status == GroupStatus(2, -1, 1)
    assert parse_dump(json.dumps(without(dump, "entries")).encode()).entries == ()


def test_a_status_without_a_name_is_kept() -> None:
    dump = parse_dump(written(until(2, 2) | {"pg_status": {"7": {"last_enqueued_collective": 9}}}))
    assert dump.groups[0].status is None
    assert dump.groups[1] == RecordedGroup("", id=7, status=GroupStatus(9, -1, -1))


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_12", 12),
        ("_dump_3", 3),
        ("generation1-rank5-dump5", 5),
        ("rank2.json", 2),
        ("trace", None),
        ("x" * 5000 + "_dump_4", 4),
    ],
)
def test_the_rank_is_parsed_from_the_file_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


# ---- malicious dumps


class Evil:
    """Kills the process that unpickles it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return os._exit, (99,)


def test_a_pickle_that_would_execute_code_is_refused() -> None:
    with pytest.raises(DumpCorrupt, match="more than plain data") as caught:
        parse_dump(pickle.dumps(until(3, 2) | {"entries": [Evil()]}), "trace_rank_0")
    assert "\n" not in str(caught.value)


@given(st.integers(0, 2000))
def test_a_truncated_pickle_is_reported_as_truncated(cut: int) -> None:
    data = written(until(2, 1))
    with pytest.raises(DumpTruncated):
        parse_dump(data[: min(cut, len(data) - 1)])


def test_truncated_json_is_reported_as_truncated() -> None:
    with pytest.raises(DumpTruncated):
        parse_dump(json.dumps(until(2, 1)).encode()[:-9])


@given(st.binary(min_size=1, max_size=300), st.sampled_from([b"", b"\x80\x02", b"{"]))
def test_random_bytes_give_one_sentence(noise: bytes, before: bytes) -> None:
    with pytest.raises(DumpUnreadable):
        parse_dump(before + noise)


NUMBERS = st.integers(-(1 << 63), 1 << 63)
WRONG = st.none() | NUMBERS | st.text(max_size=5) | st.lists(NUMBERS, max_size=3) | st.floats()


@given(st.sampled_from(sorted(entry(1))), WRONG)
def test_a_value_of_the_wrong_type_drops_at_most_its_entry(key: str, value: object) -> None:
    dump = parse_dump(written(until(2, 2) | {"entries": [entry(1), entry(2) | {key: value}]}))
    assert len(dump.entries) + dump.dropped == 2
    assert dump.entries[0] == parse_dump(written(content(entry(1)))).entries[0]


def test_the_check_of_entries_can_fail() -> None:
    assert parse_dump(written(content(entry(1), entry(2, profiling_name=7)))).dropped == 1


@given(st.sampled_from(["version", "pg_config", "pg_status", "entries", "comm_lib_version"]), WRONG)
def test_a_section_of_the_wrong_type_is_skipped_or_refused(key: str, value: object) -> None:
    try:
        dump = parse_dump(written(until(2, 1) | {key: value}))
    except DumpUnreadable:
        assert key == "version"
    else:
        assert dump.version == "2.10" or key == "version"


@pytest.mark.parametrize(
    "data", [b"\x80\x02]q\x00.", b"\x80\x02K\x07.", b"[]", b"7", b'{"entries": []}']
)
def test_other_pickles_and_json_are_refused(data: bytes) -> None:
    with pytest.raises(DumpCorrupt):
        parse_dump(data)


def test_a_dump_over_the_size_limit_is_refused(tmp_path: Path) -> None:
    huge = tmp_path / "trace_rank_0"
    with huge.open("wb") as file:
        file.truncate(dump_reader.MAX_BYTES * 40)
    with pytest.raises(DumpCorrupt, match="larger than"):
        read(huge)


def test_a_million_references_to_one_entry_are_limited() -> None:
    """Two bytes refer to an entry again, so a megabyte holds half a million references."""
    data = written(content(*[entry(1)] * (flight_recorder_entries.MAX_ENTRIES + 10)))
    assert len(data) < 1 << 20
    assert len(parse_dump(data).entries) == flight_recorder_entries.MAX_ENTRIES


def test_a_pipe_or_folder_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace_rank_0")
    for path, why in (
        (tmp_path / "trace_rank_0", "not a regular file"),
        (tmp_path / "none", "no such file"),
        (tmp_path, "not a regular file"),
    ):
        with pytest.raises(DumpUnreadable, match=why):
            read(path)

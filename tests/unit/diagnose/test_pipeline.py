"""One verdict from trace files of dead processes, dumps, stacks and logs, also damaged ones."""

import gzip
import json
import pickle
import shutil
import struct
import tarfile

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core import trace_file
from holdfast.core.errors import MissingFile
from holdfast.core.trace_file import TraceNote, TraceWriter
from holdfast.diagnose.diagnosis_page import write_diagnosis_page
from holdfast.diagnose.evidence import EvidenceKind
from holdfast.diagnose.follow import EvidenceFollower
from holdfast.diagnose.pipeline import diagnose
from holdfast.recorder.backends import CallDetails, PythonRecorder
from tests.hypothesis_profiles import examples
from tests.unit.diagnose import dump_factory

ALL_REDUCE = trace_file.OPERATIONS.index("all_reduce")
CALL = CallDetails(
    elements=12, dtype=trace_file.DTYPES.index("float32"), shape=(3, 4), tensors=1, reduction=0
)
START_TICKS_AT, STARTED_AT = 40, 48
HEALTHY = "".join(f"step {step} loss 1.0\n" for step in range(30))
OOM_KILL = (
    "Out of memory: Killed process 4711 (python) total-vm:9000kB, anon-rss:8000kB, file-rss:0kB\n"
)


def write_trace(folder, rank, calls, *, stuck, world=3, generation=0, started=None):
    """Write the trace of a dead rank after ``calls`` all-reduces, ``stuck`` in one more or not."""
    folder.mkdir(exist_ok=True)
    path = folder / f"rank{rank}.trace"
    writer = TraceWriter(path, rank=rank, world_size=world, generation=generation, records=64)
    writer.note_json(
        TraceNote.MEMBERS, {"name": "0", "ranks": list(range(world)), "description": "default_pg"}
    )
    recorder = PythonRecorder(writer, "/nowhere/torch")
    for _ in range(calls):
        recorder.finish(recorder.record("0", ALL_REDUCE, CALL))
    if stuck:
        recorder.record("0", ALL_REDUCE, CALL)
    writer.map[START_TICKS_AT : START_TICKS_AT + 8] = struct.pack(
        "<Q", 1
    )  # a process that has exited
    if started is not None:
        writer.map[STARTED_AT : STARTED_AT + 8] = struct.pack("<d", started)
    return path


def write_hang(folder):
    """Write three traces; rank 1 does not enter the sixth all-reduce."""
    for rank in range(3):
        write_trace(folder, rank, 5, stuck=rank != 1)
    return folder


def root_of(found):
    root = found.verdict.root
    return None if root is None else (root.cause, root.subject.rank)


def test_traces_of_dead_processes_name_the_missing_rank(tmp_path):
    found = diagnose([str(write_hang(tmp_path / "traces"))])
    assert (root_of(found), found.exit_status) == (("rank-missing-collective", 1), 1)
    assert {item.kind for item in found.read} == {EvidenceKind.TRACE}
    assert not {out.cause for out in found.verdict.ruled_out} & {
        "rank-killed",
        "rank-stopped",
        "host-oom-killed",
    }
    assert any("only their trace files" in text for text in found.verdict.unseen)


def test_traces_in_an_archive_are_read(tmp_path):
    write_hang(tmp_path / "traces")
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        archive.add(tmp_path / "traces", "traces")
    assert root_of(diagnose([str(tmp_path / "x.tgz")])) == ("rank-missing-collective", 1)


def test_traces_of_an_earlier_generation_are_ignored(tmp_path):
    write_trace(tmp_path / "old", 1, 50, stuck=True, generation=0, started=1_000.0)
    write_hang(tmp_path / "traces")
    write_trace(tmp_path / "copy", 0, 3, stuck=False)
    shutil.copy2(tmp_path / "traces" / "rank0.trace", tmp_path / "copy" / "rank0.trace")
    found = diagnose([str(tmp_path)])
    assert root_of(found) == ("rank-missing-collective", 1)
    why = {item.name.removeprefix(f"{tmp_path}/"): item.why for item in found.ignored}
    assert "earlier generation" in why["old/rank1.trace"]
    assert len(why) == 2
    assert len(found.read) == 3


def test_a_running_job_that_progresses_is_not_hung(tmp_path):
    for rank in range(3):
        writer = TraceWriter(tmp_path / f"rank{rank}.trace", rank=rank, world_size=3, records=64)
        if rank != 1:
            PythonRecorder(writer, "/nowhere/torch").record("0", ALL_REDUCE, CALL)
    found = diagnose([str(tmp_path)])
    assert (root_of(found), found.exit_status) == (None, 0)
    assert "the job is running" in found.verdict.unseen[0]


def test_an_earlier_cause_in_a_log_precedes_the_traces(tmp_path):
    write_hang(tmp_path / "traces")
    (tmp_path / "dmesg.txt").write_text(OOM_KILL)
    found = diagnose([str(tmp_path)])
    assert root_of(found)[0] == "host-oom-killed"
    assert any(claim.cause == "rank-missing-collective" for claim in found.verdict.consequences)
    assert {item.kind for item in found.read} == {EvidenceKind.TRACE, EvidenceKind.LOG}


def test_dumps_name_the_missing_rank(tmp_path):
    for rank, enqueued in enumerate((6, 5)):
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(dump_factory.until(enqueued, 5)))
    (tmp_path / "trace_rank_7.cut").write_bytes(pickle.dumps(dump_factory.until(6, 5))[:700])
    found = diagnose([str(tmp_path)])
    assert root_of(found) == ("rank-missing-collective", 1)
    assert [(item.name, "ends in the middle" in item.why) for item in found.ignored] == [
        (f"{tmp_path}/trace_rank_7.cut", True)
    ]
    assert len(found.read) == 2


def test_an_incident_is_judged_by_its_table(tmp_path):
    write_hang(tmp_path / "traces")
    summary = diagnose([str(tmp_path / "traces")]).summary
    killed = msgspec.structs.replace(summary.ranks[1], exit_code=-9, life="dead")
    table = msgspec.structs.replace(
        summary, ranks=(summary.ranks[0], killed, summary.ranks[2]), time=summary.time + 9
    )
    (tmp_path / "ranks.json").write_bytes(msgspec.json.format(msgspec.json.encode(table)))
    found = diagnose([str(tmp_path)])
    assert root_of(found) == ("rank-killed", 1)


def test_a_verdict_file_alone_is_shown(tmp_path):
    verdict = diagnose([str(write_hang(tmp_path / "traces"))]).verdict
    (tmp_path / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    found = diagnose([str(tmp_path / "verdict.json")])
    assert found.verdict.root == verdict.root
    assert found.exit_status == 1


def test_a_truncated_file_is_partly_read_and_reported(tmp_path):
    text = "".join(f"step {number} {hash(str(number))}\n" for number in range(40_000)).encode()
    packed = gzip.compress(text)
    (tmp_path / "rank0.log.gz").write_bytes(packed[: len(packed) // 2])
    found = diagnose([str(tmp_path)])
    assert "truncated" in found.read[0].read_error
    assert "truncated" in found.verdict.unseen[-1]
    assert 0 < found.read[0].bytes < len(text)


def test_stacks_without_ranks_are_inconclusive(tmp_path):
    (tmp_path / "a").write_text(
        'Process 4: python train.py\nPython v3.11\n\nThread 4 (idle): "MainThread"\n'
    )
    assert diagnose([str(tmp_path)]).exit_status == 3


def test_nothing_to_read(tmp_path):
    with pytest.raises(MissingFile):
        diagnose([str(tmp_path / "missing")])
    assert diagnose([str(tmp_path)]).exit_status == 2


def test_thousands_of_files_are_read_and_counted(tmp_path):
    for number in range(1_000):
        (tmp_path / f"rank{number}.log").write_text(HEALTHY if number % 2 else "")
    calls = []
    found = diagnose(
        [str(tmp_path)], on_progress=lambda files, size, name: calls.append((files, size, name))
    )
    assert (len(found.read), len(found.ignored), found.exit_status) == (500, 500, 0)
    assert calls[-1][:2] == (500, 500 * len(HEALTHY))


def test_the_page_has_the_timeline_and_the_files(tmp_path):
    write_hang(tmp_path / "traces")
    (tmp_path / "<b>.log").write_text(HEALTHY)
    text = write_diagnosis_page(diagnose([str(tmp_path)]))
    assert "all_reduce" in text
    assert "rank1.trace" in text
    assert "<b>.log" not in text


def test_following_yields_updates_and_whether_the_verdict_changed(tmp_path, monkeypatch):
    path = tmp_path / "train.log"
    path.write_text(HEALTHY)
    follower = EvidenceFollower([str(path)])
    coming = follower.updates(follower.diagnose())
    added = iter([HEALTHY, OOM_KILL])

    def grow(seconds):
        assert seconds >= 0.5
        with path.open("a") as file:
            file.write(next(added))

    monkeypatch.setattr("time.sleep", grow)
    assert not next(coming).is_new_verdict
    news = next(coming)
    assert news.is_new_verdict
    assert root_of(news.result)[0] == "host-oom-killed"


@settings(
    max_examples=examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.tuples(st.integers(8, 4095), st.binary(min_size=1, max_size=12)), max_size=5),
    st.data(),
)
def test_a_damaged_trace_does_not_raise(tmp_path, changes, data):
    if not (tmp_path / "traces").exists():
        write_hang(tmp_path / "traces")
    whole = bytearray((tmp_path / "traces" / "rank0.trace").read_bytes())
    notes_at = trace_file.HEADER_BYTES + trace_file.GROUPS * trace_file.GROUP_BYTES
    areas = (0, trace_file.HEADER_BYTES, notes_at, notes_at + trace_file.NOTES_BYTES)
    for place, value in changes:
        begin = data.draw(st.sampled_from(areas)) + place
        whole[begin : begin + len(value)] = value
    bad = tmp_path / "bad"
    bad.mkdir(exist_ok=True)
    (bad / "rank0.trace").write_bytes(whole)
    for rank in (1, 2):
        shutil.copyfile(tmp_path / "traces" / f"rank{rank}.trace", bad / f"rank{rank}.trace")
    found = diagnose([str(bad)])
    write_diagnosis_page(found)
    json.dumps(msgspec.to_builtins(found.verdict))
    assert found.exit_status in {0, 1, 3}


WAITS = "all_reduce (torch/distributed/distributed_c10d.py:3252)"
TABLE = "Failures:\n  rank      : {rank} (local_rank: 0)\n  exitcode  : {code} (pid: {pid})\n"


def write_stacks(path, pid, *frames, state="idle"):
    """Write py-spy's output for a rank in the training step, with ``frames`` on top."""
    path.parent.mkdir(exist_ok=True)
    main = "".join(
        f"    {frame}\n"
        for frame in (*frames, "train_step (train.py:16)", "<module> (train.py:38)")
    )
    head = f"Process {pid}: python train.py\nPython v3.11.7 (/usr/bin/python)\n\n"
    path.write_text(f'{head}Thread {pid} ({state}): "MainThread"\n{main}')


def write_samples(folder, *, asleep, times=2, ranks=3):
    for time in range(times):
        for rank in range(ranks):
            frames = ["tokenize (data.py:21)"] if rank == asleep else [WAITS]
            write_stacks(folder / f"{time}" / f"rank{rank}.txt", 100 + rank, *frames)
    return folder


def test_stacks_alone_name_the_rank_outside_the_collective(tmp_path):
    (tmp_path / "s").mkdir()
    found = diagnose([str(write_samples(tmp_path / "s", asleep=1))])
    root = found.verdict.root
    assert (root_of(found), found.exit_status) == (("rank-missing-collective", 1), 1)
    assert (root.subject.file, root.subject.line) == ("data.py", 21)
    assert "train.py:16" in root.message
    assert any("assumed to include the highest rank" in text for text in found.verdict.unseen)
    assert "tokenize" in write_diagnosis_page(found)


def test_one_sample_has_a_lower_confidence_than_two(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "t").mkdir()
    twice = diagnose([str(write_samples(tmp_path / "s", asleep=1))]).verdict.root
    once = diagnose([str(write_samples(tmp_path / "t", asleep=1, times=1))]).verdict.root
    assert twice.confidence > once.confidence


def test_a_rank_that_uses_the_cpu_is_working(tmp_path):
    write_stacks(tmp_path / "rank0.txt", 7, WAITS)
    write_stacks(tmp_path / "rank1.txt", 8, "tokenize (data.py:21)", state="active+gil")
    found = diagnose([str(tmp_path)])
    assert (root_of(found), found.exit_status) == (None, 0)


def test_stacks_of_unknown_ranks_are_inconclusive(tmp_path):
    write_stacks(tmp_path / "one.txt", 7, WAITS)
    found = diagnose([str(tmp_path)])
    assert (root_of(found), found.exit_status, found.is_inconclusive) == (None, 3, True)
    assert "inconclusive" in write_diagnosis_page(found)


def test_stacks_locate_the_rank_that_traces_report_missing(tmp_path):
    write_hang(tmp_path / "traces")
    write_stacks(tmp_path / "rank1.txt", 8, "tokenize (data.py:21)")
    root = diagnose([str(tmp_path)]).verdict.root
    assert (root.cause, root.subject.rank, root.subject.line) == ("rank-missing-collective", 1, 21)
    assert "all_reduce #6" in root.message


def test_stacks_locate_the_rank_that_dumps_report_missing(tmp_path):
    for rank, enqueued in enumerate((6, 5)):
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(dump_factory.until(enqueued, 5)))
    write_stacks(tmp_path / "rank1.txt", 8, "tokenize (data.py:21)")
    root = diagnose([str(tmp_path)]).verdict.root
    assert (root.cause, root.subject.rank, root.subject.line) == ("rank-missing-collective", 1, 21)
    assert "all_reduce #6" in root.message


def test_logged_exit_codes_are_judged_with_the_traces(tmp_path):
    write_hang(tmp_path / "traces")
    pid = diagnose([str(tmp_path)]).summary.ranks[1].pid
    log = tmp_path / "job.log"
    for number, (code, cause) in enumerate(
        ((-9, "rank-killed"), (-11, "segfault-in-worker"), (7, "exit-nonzero"))
    ):
        log.write_text(TABLE.format(rank=1, code=code, pid=pid))
        found = diagnose([str(tmp_path)])
        assert (number, root_of(found)) == (number, (cause, 1))
        assert not any(
            "cgroup" in out.why or "stopped" in out.why for out in found.verdict.ruled_out
        )
        assert any(fact.origin == f"{log}:3" for fact in found.verdict.root.evidence)


def test_logged_exit_codes_are_judged_with_the_dumps(tmp_path):
    for rank, enqueued in enumerate((6, 5)):
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(dump_factory.until(enqueued, 5)))
    (tmp_path / "job.log").write_text("srun: error: node1: task 1: Segmentation fault\n")
    assert root_of(diagnose([str(tmp_path)])) == ("segfault-in-worker", 1)
    (tmp_path / "trace_rank_1").unlink()  # a killed rank leaves no dump
    found = diagnose([str(tmp_path)])
    assert root_of(found) == ("segfault-in-worker", 1)
    assert any("Segmentation" in fact.text for fact in found.verdict.root.evidence)


def write_nccl_trace(folder, rank, calls):
    """Write a trace with all-reduces on NCCL whose completion is unknown."""
    path = write_trace(folder, rank, 0, stuck=False, world=2)
    writer = TraceWriter(path, rank=rank, world_size=2, records=64)
    writer.note_json(TraceNote.MEMBERS, {"name": "0", "ranks": [0, 1], "description": "default_pg"})
    recorder = PythonRecorder(writer, "/nowhere/torch")
    for _ in range(calls):
        recorder.mark_no_completion(recorder.record("0", ALL_REDUCE, CALL))
    writer.map[START_TICKS_AT : START_TICKS_AT + 8] = struct.pack("<Q", 1)


def test_dumps_settle_the_completion_of_nccl_calls_in_traces(tmp_path):
    for rank in range(2):
        write_nccl_trace(tmp_path / "traces", rank, 31)
    before = diagnose([str(tmp_path / "traces")])
    assert [len(state.pending) for state in before.summary.ranks] == [31, 31]
    assert "no flight-recorder dump" in before.summary.ranks[0].unseen[0]
    for rank in range(2):
        (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(dump_factory.until(31, 30)))
    after = diagnose([str(tmp_path)])
    assert [
        [(call.sequence, call.certain) for call in state.pending] for state in after.summary.ranks
    ] == [[(31, True)], [(31, True)]]


def write_ended_trace(folder, rank, world, exception=None):
    """Write the trace of a rank that recorded the end of its script."""
    path = write_trace(folder, rank, 5, stuck=False, world=world)
    writer = TraceWriter(path, rank=rank, world_size=world, records=64)
    if exception is not None:
        writer.note_json(TraceNote.RAISED, {"type": "RuntimeError", "text": exception})
    writer.note_json(
        TraceNote.ENDED,
        {"how": "exception" if exception else "end of script", "time": 1_800_000_000.0},
    )
    writer.map[START_TICKS_AT : START_TICKS_AT + 8] = struct.pack("<Q", 1)


def test_a_trace_without_an_end_next_to_others_is_inconclusive(tmp_path):
    write_ended_trace(tmp_path / "traces", 0, 2)
    write_trace(tmp_path / "traces", 1, 5, stuck=False, world=2)
    found = diagnose([str(tmp_path)])
    assert (root_of(found), found.exit_status) == (("peer-lost", 1), 3)
    assert "rank 1 recorded no end" in found.verdict.root.message


def test_traces_without_any_end_are_inconclusive(tmp_path):
    for rank in range(2):
        write_trace(tmp_path / "traces", rank, 5, stuck=False, world=2)
    found = diagnose([str(tmp_path)])
    assert (root_of(found), found.exit_status) == (None, 3)
    assert any("ranks 0-1 ended" in text for text in found.verdict.unseen)


def test_traces_with_recorded_ends_have_no_root_cause(tmp_path):
    for rank in range(2):
        write_ended_trace(tmp_path / "traces", rank, 2)
    assert diagnose([str(tmp_path)]).exit_status == 0


@pytest.mark.parametrize("cut", [True, False])
def test_a_partly_or_wholly_lost_log_is_inconclusive(tmp_path, cut):
    (tmp_path / "rank0.log").write_text(HEALTHY)
    packed = gzip.compress(
        "".join(f"step {number} {hash(str(number))}\n" for number in range(40_000)).encode()
    )
    (tmp_path / "rank1.log.gz").write_bytes(
        packed[: len(packed) // 2] if cut else packed[:10] + b"\xff" * 50
    )
    found = diagnose([str(tmp_path)])
    assert (root_of(found), found.exit_status) == (None, 3)
    assert any("rank1.log.gz" in text for text in found.verdict.unseen)
    (tmp_path / "dmesg").write_text(OOM_KILL)
    assert diagnose([str(tmp_path)]).exit_status == 1

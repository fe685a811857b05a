"""``holdfast diagnose``: output, exit status, and arbitrary input."""

import gzip
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.cli import main
from tests.faults.specimens.expected import guilty_line
from tests.hypothesis_profiles import examples
from tests.process.launched import Launched
from tests.process.test_attach import TorchrunJob
from tests.unit.cli.in_process import run_holdfast

SPECIMENS = Path(__file__).parents[2] / "faults" / "specimens"
E2E = Path(__file__).parents[2] / "process"
CRASH = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/ann/train.py", line 41, in <module>
[rank1]:     main()
[rank1]:   File "/home/ann/train.py", line 30, in main
[rank1]:     loss = table[step]
[rank1]: KeyError: 17
"""
HEALTHY = "".join(f"step {step} loss {1 / (step + 1):.3f}\n" for step in range(50))


def holdfast(*arguments, stdin=None):
    """Run ``holdfast diagnose``; in a process if it reads its standard input."""
    if stdin is None:
        return run_holdfast("diagnose", *arguments, COLUMNS="120")
    command = [sys.executable, "-m", "holdfast", "diagnose", *map(str, arguments)]
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)
    return subprocess.CompletedProcess(
        command, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def as_json(*arguments, **options):
    done = holdfast("--json", *arguments, **options)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_log_yields_cause_line_and_files_read(tmp_path):
    (tmp_path / "train.log").write_text(CRASH)
    (tmp_path / "core").write_bytes(bytes(range(256)) * 8)
    done = holdfast(tmp_path)
    shown = done.stdout
    assert done.returncode == 1
    assert "KeyError" in shown.splitlines()[0]
    assert "1 file read" in shown
    assert "train.log" in shown
    assert "core: unrecognized file format" in " ".join(shown.split())


def test_json_is_one_object_in_the_common_format(tmp_path):
    (tmp_path / "train.log").write_text(CRASH)
    (tmp_path / "empty").touch()
    status, content = as_json(tmp_path)
    assert status == 1
    assert (content["schema"], content["command"]) == ("holdfast/1", "diagnose")
    root = content["verdict"]["root"]
    assert (root["subject"]["rank"], root["subject"]["line"]) == (1, 30)
    assert content["findings"][0] == root
    assert content["read"] == [
        {"name": f"{tmp_path}/train.log", "kind": "log", "bytes": len(CRASH), "trouble": ""}
    ]
    assert content["ignored"] == [{"name": f"{tmp_path}/empty", "why": "empty file"}]


def test_a_healthy_log_exits_with_0(tmp_path):
    (tmp_path / "train.log").write_text(HEALTHY)
    done = holdfast(tmp_path / "train.log")
    assert (done.returncode, done.stdout[0]) == (0, "✓")


@pytest.mark.parametrize(
    "error",
    [
        "torch.distributed.DistBackendError: NCCL timeout after 1800 seconds",
        "EOFError: Ran out of input",
    ],
)
def test_an_apparent_echo_without_another_cause_exits_with_1_and_its_line(tmp_path, error):
    (tmp_path / "train.log").write_text(HEALTHY + CRASH.replace("KeyError: 17", error))
    done = holdfast(tmp_path / "train.log")
    shown = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert "nothing failed" not in shown
    assert error in shown
    assert "train.py:30" in shown
    assert "rank 1" in shown
    (tmp_path / "train.log").write_text(HEALTHY + CRASH.replace("KeyError: 17", error) + HEALTHY)
    assert holdfast(tmp_path / "train.log").returncode == 0


def test_a_log_without_progress_is_inconclusive(tmp_path):
    (tmp_path / "train.log").write_text("loading the data\nbuilding the model\n")
    done = holdfast(tmp_path / "train.log")
    assert (done.returncode, done.stdout[0]) == (3, "?")
    assert "no line reports a failure, a step, or the end of training" in " ".join(
        done.stdout.split()
    )


@pytest.mark.slow
def test_many_small_files_are_summarized_in_a_few_lines(tmp_path):
    for number in range(3000):
        content = (b"", b"\x01\x02\x03" * 200, b"step 1 loss 2.0\n")[min(number % 10, 2)]
        (tmp_path / f"{number}.txt").write_bytes(content)
    (tmp_path / "2999.txt").write_text(CRASH)
    done = holdfast(tmp_path)
    shown = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) < 40
    for words in (
        "KeyError: 17",
        "2,400 files read",
        "and 2,397 more",
        "600 skipped",
        "and 297 more: empty file",
    ):
        assert words in shown, shown


@pytest.mark.parametrize("form", ["tar", "gzip", "plain"])
def test_standard_input_may_be_a_log_or_an_archive(form):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as file:
        header = tarfile.TarInfo("logs/rank1/stderr.log")
        header.size = len(CRASH)
        file.addfile(header, io.BytesIO(CRASH.encode()))
    content = {
        "tar": archive.getvalue(),
        "gzip": gzip.compress(CRASH.encode()),
        "plain": CRASH.encode(),
    }[form]
    status, content = as_json("-", stdin=content)
    assert (status, content["verdict"]["root"]["subject"]["rank"]) == (1, 1)


def test_a_pipe_of_the_shell_is_read(tmp_path):
    (tmp_path / "train.log").write_text(CRASH)
    program = f"{sys.executable} -m holdfast diagnose --json <(cat {tmp_path}/train.log)"
    done = subprocess.run(["bash", "-c", program], capture_output=True, check=False, timeout=60)
    assert (done.returncode, json.loads(done.stdout)["verdict"]["root"]["subject"]["rank"]) == (
        1,
        1,
    )


def test_no_readable_input_exits_with_2(tmp_path):
    (tmp_path / "junk").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a")[:10])
    done = holdfast(tmp_path)
    assert done.returncode == 2
    assert "no readable input" in done.stderr
    assert "junk" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["/no/such/file"], ["--follow", "-"], [], ["--no-such-option", "x"]]
)
def test_wrong_usage_is_reported_without_a_traceback(arguments):
    done = holdfast(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_a_dump_that_runs_code_is_skipped_with_the_reason(tmp_path):
    class Attack:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    (tmp_path / "trace_rank_0").write_bytes(pickle.dumps({"version": "2.4", "entries": [Attack()]}))
    status, content = as_json(tmp_path)
    assert status == 2
    assert "plain data" in content["ignored"][0]["why"]
    assert not (tmp_path / "ran").exists()


def test_the_html_page_is_written(tmp_path):
    (tmp_path / "train.log").write_text(CRASH)
    assert holdfast(tmp_path / "train.log", "--html", tmp_path / "page.html").returncode == 1
    page = (tmp_path / "page.html").read_text()
    assert "KeyError" in page
    assert "train.log" in page
    assert "1970" not in page
    done = holdfast(tmp_path / "train.log", "--html", tmp_path / "no" / "page.html")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_it_needs_no_torch(tmp_path):
    (tmp_path / "train.log").write_text(CRASH)
    forbid = (
        "import sys; sys.modules['torch'] = None; from holdfast.cli import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", forbid, "diagnose", str(tmp_path)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1


@pytest.mark.slow
def test_follow_prints_changed_verdicts_and_exits_with_the_last(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(HEALTHY)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "holdfast", "diagnose", "--follow", str(path)]
    with (
        out.open("wb") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE) as process,
    ):
        try:
            wait_for(out, "nothing failed")
            with path.open("a") as log:
                log.write(CRASH)
            wait_for(out, "KeyError")
            process.send_signal(signal.SIGINT)
            assert process.wait(100) == 1
            assert b"Traceback" not in process.stderr.read()
        finally:
            process.kill()
    assert out.read_text().count("nothing failed") == 1


WRITER = """
import os, sys, time
crash = sys.stdin.read()
log = open("train.log", "a", buffering=1)
for step in range(60):
    print(f"step {step} loss 1.0 " + "x" * 200, file=log)
    time.sleep(0.02)
    if step == 30:
        os.rename("train.log", "train.log.1")
        log = open("train.log", "a", buffering=1)
for half in (crash[:100], crash[100:]):
    log.write(half)
    log.flush()
    time.sleep(0.3)
"""


@pytest.mark.slow
def test_follow_reads_a_log_that_is_rotated_while_it_is_written(tmp_path):
    (tmp_path / "train.log").write_text(HEALTHY * 2000)
    out, command = (
        tmp_path / "out.txt",
        [sys.executable, "-m", "holdfast", "diagnose", "--follow", "train.log"],
    )
    with out.open("wb") as file, subprocess.Popen(command, cwd=tmp_path, stdout=file) as process:
        try:
            wait_for(out, "nothing failed")
            subprocess.run(
                [sys.executable, "-c", WRITER], input=CRASH, text=True, cwd=tmp_path, check=True
            )
            wait_for(out, "KeyError: 17")
            process.send_signal(signal.SIGINT)
            assert process.wait(100) == 1
        finally:
            process.kill()


def wait_for(path, text, limit_s=100):
    until = time.monotonic() + limit_s
    while text not in path.read_text():
        assert time.monotonic() < until, path.read_text()
        time.sleep(0.05)


@pytest.mark.slow
def test_traces_of_a_finished_job_yield_the_watchers_verdict(tmp_path):
    """Traces alone, the incident, and an archive of the run name the rank of a real hang on gloo."""
    job = Launched(
        tmp_path,
        "--nproc-per-node",
        "4",
        "--on-hang",
        "stop",
        "--act-after",
        "5s",
        SPECIMENS / "rank_sleeps.py",
    )
    try:
        job.end()
        (incident,) = job.run.glob("incidents/*")
        recorded = json.loads((incident / "verdict.json").read_text())["root"]
        status, content = as_json(incident / "traces")
        root = content["verdict"]["root"]
        assert (status, root["subject"]["rank"], recorded["subject"]["rank"]) == (1, 2, 2)
        assert {item["kind"] for item in content["read"]} == {"holdfast trace"}
        assert not any("alive" in out["why"] for out in content["verdict"]["ruled_out"])
        status, content = as_json(incident)
        assert (status, content["verdict"]["root"]["message"]) == (1, recorded["message"])
        with tarfile.open(tmp_path / "run.tgz", "w:gz") as archive:
            archive.add(job.run, "run")
        status, content = as_json(tmp_path / "run.tgz")
        assert (status, content["verdict"]["root"]["subject"]["rank"]) == (1, 2)
    finally:
        job.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "by_traces", "cause"),
    [
        (SPECIMENS / "sigkilled.py", "peer-lost", "rank-killed"),
        (E2E / "leaves_quietly.py", "rank-exits-early", "exit-nonzero"),
    ],
)
def test_traces_name_a_rank_that_died_without_an_exception(tmp_path, program, by_traces, cause):
    """Traces alone name the rank that died on gloo; with its exit code also the cause."""
    job = Launched(tmp_path, "--nproc-per-node", "2", program)
    try:
        assert job.end() != 0
        (incident,) = job.run.glob("incidents/*")
        status, content = as_json(incident / "traces")
        root = content["verdict"]["root"]
        assert (status, root["cause"], root["subject"]["rank"]) == (1, by_traces, 1)
        assert "all_reduce #31" in root["message"]
        pid = json.loads((incident / "ranks.json").read_text())["ranks"][1]["pid"]
        code = -9 if cause == "rank-killed" else 7
        (tmp_path / "torchrun.log").write_text(
            f"  rank      : 1 (local_rank: 1)\n  exitcode  : {code} (pid: {pid})\n"
        )
        status, content = as_json(incident / "traces", tmp_path / "torchrun.log")
        root = content["verdict"]["root"]
        assert (status, root["cause"], root["subject"]["rank"]) == (1, cause, 1)
    finally:
        job.kill()


@pytest.mark.slow
def test_py_spy_stacks_of_a_real_hang_name_rank_and_line(tmp_path):
    """Text and JSON, short and full file names, one file per rank or one for all: the same result."""
    py_spy = Path(sys.executable).with_name("py-spy")
    with TorchrunJob(tmp_path, "rank_sleeps").wait_for("step 20").wait_until_still() as job:
        ranks = {each.environ()["RANK"]: each.pid for each in job.ranks()}
        for form, words in {
            "text": [],
            "json": ["--json"],
            "full": ["--full-filenames"],
            "locals": ["-l"],
        }.items():
            for sample in ("0", "1"):
                (tmp_path / form / sample).mkdir(parents=True)
                for rank, pid in ranks.items():
                    command = [py_spy, "dump", "--nonblocking", "--pid", str(pid), *words]
                    done = subprocess.run(command, capture_output=True, check=False)
                    if b"ermission" in done.stderr:
                        pytest.skip("tracing is not allowed here")
                    (tmp_path / form / sample / f"rank{rank}.txt").write_bytes(done.stdout)
    expected = ("rank-missing-collective", 2, guilty_line("rank_sleeps"))
    for form in ("text", "json", "full", "locals"):
        status, content = as_json(tmp_path / form)
        root = content["verdict"]["root"]
        assert (form, status, root["cause"], root["subject"]["rank"], root["subject"]["line"]) == (
            form,
            1,
            *expected,
        )
        assert {item["kind"] for item in content["read"]} == {"py-spy stack dump"}
        assert content["ignored"] == []
    together = "".join(
        f"== rank {rank} ==\n{(tmp_path / 'text' / '1' / f'rank{rank}.txt').read_text()}"
        for rank in ranks
    )
    status, content = as_json("-", stdin=together.encode())
    assert (status, content["verdict"]["root"]["subject"]["rank"]) == (1, 2)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "spy.txt").write_bytes((tmp_path / "text" / "1" / "rank2.txt").read_bytes())
    done = holdfast(tmp_path / "one")
    assert done.returncode == 3
    assert "inconclusive" in done.stdout


FIRST_BYTES = [
    b"",
    b"\x1f\x8b\x08\x00",
    b"BZh91AY&SY",
    b"PK\x03\x04",
    b"HOLDFAST\x01\0\0\0",
    b"\x80\x04}",
    b"{",
    b"[rank0]: ",
    b'{"ranks": [',
    b'{"schema": "holdfast/1"',
    b"Traceback (most recent call last):\n",
    b'{"entries": [{}], "pg_config"',
]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from(FIRST_BYTES), st.binary(max_size=400)), min_size=1, max_size=3
    )
)
def test_arbitrary_bytes_do_not_raise(tmp_path, capsys, files):
    for number, (beginning, rest) in enumerate(files):
        (tmp_path / f"{number}").write_bytes(beginning + rest)
    with pytest.raises(SystemExit) as stop:
        main(["diagnose", "--json", str(tmp_path)])
    assert stop.value.code in {0, 1, 2, 3}
    out, err = capsys.readouterr()
    assert "Traceback (" not in err
    assert json.loads(out)["command"] == "diagnose"

"""The command as a person calls it: what it prints, how it ends, and that nothing given to it makes it fail."""

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
from tests.e2e.launched import Launched
from tests.e2e.test_attach import Job
from tests.specimens.expected import guilty_line

SPECIMENS = Path(__file__).parents[1] / "specimens"
E2E = Path(__file__).parents[1] / "e2e"
CRASH = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/ann/train.py", line 41, in <module>
[rank1]:     main()
[rank1]:   File "/home/ann/train.py", line 30, in main
[rank1]:     loss = table[step]
[rank1]: KeyError: 17
"""
HEALTHY = "".join(f"step {step} loss {1 / (step + 1):.3f}\n" for step in range(50))


def holdfast(*arguments, stdin=b"", **options):
    """`holdfast diagnose` as a process of its own."""
    command = [sys.executable, "-m", "holdfast", "diagnose", *map(str, arguments)]
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        command, input=stdin, capture_output=True, check=False, timeout=60, env=environment, **options
    )


def as_json(*arguments, **options):
    done = holdfast("--json", *arguments, **options)
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_log_gives_the_cause_the_line_and_what_was_read(tmp_path):
    (tmp_path / "train.log").write_text(CRASH)
    (tmp_path / "core").write_bytes(bytes(range(256)) * 8)
    done = holdfast(tmp_path)
    shown = done.stdout.decode()
    assert done.returncode == 1
    assert "KeyError" in shown.splitlines()[0]
    assert "1 file read" in shown
    assert "train.log" in shown
    assert "core: it is no text" in " ".join(shown.split())


def test_json_is_one_object_in_the_common_shape(tmp_path):
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
    ]  # fmt: skip
    assert content["ignored"] == [{"name": f"{tmp_path}/empty", "why": "it is empty"}]


def test_a_healthy_log_ends_with_0(tmp_path):
    (tmp_path / "train.log").write_text(HEALTHY)
    done = holdfast(tmp_path / "train.log")
    assert (done.returncode, done.stdout.decode()[0]) == (0, "✓")


def test_a_log_that_tells_of_nothing_is_not_called_fine(tmp_path):
    (tmp_path / "train.log").write_text("loading the data\nbuilding the model\n")
    done = holdfast(tmp_path / "train.log")
    assert (done.returncode, done.stdout.decode()[0]) == (3, "?")
    assert "nothing says that the job went well" in " ".join(done.stdout.decode().split())


@pytest.mark.slow
def test_a_folder_of_many_small_files_is_told_in_a_few_lines(tmp_path):
    for number in range(3000):
        content = (b"", b"\x01\x02\x03" * 200, HEALTHY.encode())[min(number % 10, 2)]
        (tmp_path / f"{number}.txt").write_bytes(content)
    (tmp_path / "2999.txt").write_text(CRASH)
    done = holdfast(tmp_path)
    shown = " ".join(done.stdout.decode().split())
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) < 40
    for words in ("KeyError: 17", "2,400 files read", "and 2,397 more", "600 ignored", "and 297 more: it is empty"):
        assert words in shown, shown


@pytest.mark.parametrize("form", ["tar", "gzip", "plain"])
def test_standard_input_may_be_anything(form):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as file:
        header = tarfile.TarInfo("logs/rank1/stderr.log")
        header.size = len(CRASH)
        file.addfile(header, io.BytesIO(CRASH.encode()))
    content = {"tar": archive.getvalue(), "gzip": gzip.compress(CRASH.encode()), "plain": CRASH.encode()}[form]
    status, content = as_json("-", stdin=content)
    assert (status, content["verdict"]["root"]["subject"]["rank"]) == (1, 1)


def test_a_pipe_of_the_shell_is_read(tmp_path):
    (tmp_path / "train.log").write_text(CRASH)
    program = f"{sys.executable} -m holdfast diagnose --json <(cat {tmp_path}/train.log)"
    done = subprocess.run(["bash", "-c", program], capture_output=True, check=False, timeout=60)
    assert (done.returncode, json.loads(done.stdout)["verdict"]["root"]["subject"]["rank"]) == (1, 1)


def test_where_nothing_can_be_read_it_ends_with_2(tmp_path):
    (tmp_path / "junk").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a")[:10])
    done = holdfast(tmp_path)
    assert done.returncode == 2
    assert b"nothing could be read" in done.stderr
    assert b"junk" in done.stdout


@pytest.mark.parametrize("arguments", [["/no/such/file"], ["--follow", "-"], [], ["--no-such-option", "x"]])
def test_wrong_usage_is_said_in_a_sentence(arguments):
    done = holdfast(*arguments)
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    assert done.stderr


def test_a_dump_that_runs_code_is_refused_and_named(tmp_path):
    class Attack:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/ran",)

    (tmp_path / "trace_rank_0").write_bytes(pickle.dumps({"version": "2.4", "entries": [Attack()]}))
    status, content = as_json(tmp_path)
    assert status == 2
    assert "plain data" in content["ignored"][0]["why"]
    assert not (tmp_path / "ran").exists()


def test_the_page_is_written(tmp_path):
    (tmp_path / "train.log").write_text(CRASH)
    assert holdfast(tmp_path / "train.log", "--html", tmp_path / "page.html").returncode == 1
    page = (tmp_path / "page.html").read_text()
    assert "KeyError" in page
    assert "train.log" in page
    assert "1970" not in page
    done = holdfast(tmp_path / "train.log", "--html", tmp_path / "no" / "page.html")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)


def test_it_needs_no_torch(tmp_path):
    (tmp_path / "train.log").write_text(CRASH)
    forbid = "import sys; sys.modules['torch'] = None; from holdfast.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", forbid, "diagnose", str(tmp_path)]
    assert subprocess.run(command, capture_output=True, check=False, timeout=60).returncode == 1


@pytest.mark.slow
def test_follow_speaks_when_the_verdict_changes_and_ends_with_it(tmp_path):
    path = tmp_path / "train.log"
    path.write_text(HEALTHY)
    out = tmp_path / "out"
    command = [sys.executable, "-m", "holdfast", "diagnose", "--follow", str(path)]
    with out.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE) as process:
        try:
            wait_for(out, "nothing failed")
            with path.open("a") as log:
                log.write(CRASH)
            wait_for(out, "KeyError")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 1
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
def test_follow_hears_a_process_whose_log_is_turned_away_while_it_writes(tmp_path):
    (tmp_path / "train.log").write_text(HEALTHY * 20_000)
    out, command = tmp_path / "out.txt", [sys.executable, "-m", "holdfast", "diagnose", "--follow", "train.log"]
    with out.open("wb") as file, subprocess.Popen(command, cwd=tmp_path, stdout=file) as process:
        try:
            wait_for(out, "nothing failed")
            subprocess.run([sys.executable, "-c", WRITER], input=CRASH, text=True, cwd=tmp_path, check=True)
            wait_for(out, "KeyError: 17")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 1
        finally:
            process.kill()


def wait_for(path, text, limit_s=30):
    until = time.monotonic() + limit_s
    while text not in path.read_text():
        assert time.monotonic() < until, path.read_text()
        time.sleep(0.05)


@pytest.mark.slow
def test_boxes_of_a_job_that_is_gone_tell_what_the_watcher_told(tmp_path):
    """A real hang on gloo: its boxes alone, its incident, and an archive of the whole run name the rank."""
    job = Launched(tmp_path, "--nproc-per-node", "4", "--on-hang", "stop", SPECIMENS / "rank_sleeps.py")
    try:
        job.end()
        (incident,) = job.run.glob("incidents/*")
        told = json.loads((incident / "verdict.json").read_text())["root"]
        status, content = as_json(incident / "boxes")
        root = content["verdict"]["root"]
        assert (status, root["subject"]["rank"], told["subject"]["rank"]) == (1, 2, 2)
        assert {item["kind"] for item in content["read"]} == {"holdfast box"}
        assert not any("alive" in out["why"] for out in content["verdict"]["ruled_out"])
        status, content = as_json(incident)
        assert (status, content["verdict"]["root"]["message"]) == (1, told["message"])
        with tarfile.open(tmp_path / "run.tgz", "w:gz") as archive:
            archive.add(job.run, "run")
        status, content = as_json(tmp_path / "run.tgz")
        assert (status, content["verdict"]["root"]["subject"]["rank"]) == (1, 2)
    finally:
        job.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "cause"),
    [(SPECIMENS / "sigkilled.py", "rank-killed"), (E2E / "leaves_quietly.py", "exit-nonzero")],
)
def test_boxes_of_a_rank_that_died_without_a_word_name_it(tmp_path, program, cause):
    """A real death on gloo: from the boxes alone the rank is known, with its exit code also how it went."""
    job = Launched(tmp_path, "--nproc-per-node", "2", program)
    try:
        assert job.end() != 0
        (incident,) = job.run.glob("incidents/*")
        status, content = as_json(incident / "boxes")
        root = content["verdict"]["root"]
        assert (status, root["cause"], root["subject"]["rank"]) == (1, "peer-lost", 1)
        assert "all_reduce #31" in root["message"]
        pid = json.loads((incident / "ranks.json").read_text())["ranks"][1]["pid"]
        code = -9 if cause == "rank-killed" else 7
        (tmp_path / "torchrun.log").write_text(f"  rank      : 1 (local_rank: 1)\n  exitcode  : {code} (pid: {pid})\n")
        status, content = as_json(incident / "boxes", tmp_path / "torchrun.log")
        root = content["verdict"]["root"]
        assert (status, root["cause"], root["subject"]["rank"]) == (1, cause, 1)
    finally:
        job.kill()


@pytest.mark.slow
def test_what_py_spy_wrote_of_a_real_hang_names_rank_and_line(tmp_path):
    """Text and JSON, with and without whole names of files, a file a rank and all in one: the same answer."""
    py_spy = Path(sys.executable).with_name("py-spy")
    with Job(tmp_path, "rank_sleeps").wait_for("step 20").wait_until_still() as job:
        ranks = {each.environ()["RANK"]: each.pid for each in job.ranks()}
        for form, words in {"text": [], "json": ["--json"], "full": ["--full-filenames"], "locals": ["-l"]}.items():
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
        assert (form, status, root["cause"], root["subject"]["rank"], root["subject"]["line"]) == (form, 1, *expected)
        assert {item["kind"] for item in content["read"]} == {"py-spy stacks"}
        assert content["ignored"] == []
    together = "".join(
        f"== rank {rank} ==\n{(tmp_path / 'text' / '1' / f'rank{rank}.txt').read_text()}" for rank in ranks
    )
    status, content = as_json("-", stdin=together.encode())
    assert (status, content["verdict"]["root"]["subject"]["rank"]) == (1, 2)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "spy.txt").write_bytes((tmp_path / "text" / "1" / "rank2.txt").read_bytes())
    done = holdfast(tmp_path / "one")
    assert done.returncode == 3
    assert "could not be judged" in done.stdout.decode()


BEGINNINGS = [
    b"", b"\x1f\x8b\x08\x00", b"BZh91AY&SY", b"PK\x03\x04", b"HOLDFAST\x01\0\0\0", b"\x80\x04}", b"{", b"[rank0]: ",
    b'{"ranks": [', b'{"schema": "holdfast/1"', b"Traceback (most recent call last):\n",
    b'{"entries": [{}], "pg_config"',
]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(BEGINNINGS), st.binary(max_size=400)), min_size=1, max_size=3))
def test_no_bytes_make_it_fail(tmp_path, capsys, files):
    for number, (beginning, rest) in enumerate(files):
        (tmp_path / f"{number}").write_bytes(beginning + rest)
    with pytest.raises(SystemExit) as stop:
        main(["diagnose", "--json", str(tmp_path)])
    assert stop.value.code in {0, 1, 2, 3}
    out, err = capsys.readouterr()
    assert "Traceback (" not in err
    assert json.loads(out)["command"] == "diagnose"

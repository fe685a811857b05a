"""``holdfast bench``: in one process, as ranks of torchrun, against a baseline, with invalid arguments."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.forked_programs import RunningProgram
from tests.unit.cli.in_process import run_holdfast

BENCH = ["-m", "holdfast", "bench"]
QUICK = ["--max-bytes", "64K", "--factor", "32", "--iters", "3", "--warmup", "1"]


def started(*arguments, folder, command=BENCH):
    return RunningProgram(*command, *arguments, folder=folder, HOLDFAST_CACHE=str(folder / "cache"))


def ended(*arguments, folder, command=BENCH):
    return started(*arguments, folder=folder, command=command).result()


def in_process(*arguments, folder, **variables):
    variables["HOLDFAST_CACHE"] = str(folder / "cache")
    return run_holdfast("bench", *arguments, folder=folder, **variables)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return a finished measurement of this host's ranks, and the folder of its files."""
    folder = tmp_path_factory.mktemp("measured")
    done = ended(
        *QUICK,
        "all_reduce",
        "-e",
        "4M",
        "--save",
        "m.json",
        "--csv",
        "m.csv",
        "--html",
        "m.html",
        "--pairs",
        folder=folder,
    )
    return done, folder


@pytest.mark.slow
def test_ranks_are_started_and_table_and_files_are_written(measured):
    done, folder = measured
    assert (done.returncode, done.stderr) == (0, "")
    rows = [
        line.split()
        for line in done.stdout.splitlines()
        if line[:1] == " " and line.split()[0].isdigit()
    ]
    assert [row[0] for row in rows] == ["8", "256", "8192", "262144"]
    assert all(len(row) == 13 and row[8] == row[12] == "0" for row in rows)
    assert "# Out of bounds values : 0 OK" in done.stdout
    found = json.loads((folder / "m.json").read_bytes())
    assert (found["command"], found["measurement"]["ranks"]) == ("bench", 2)
    assert (folder / "m.csv").read_text().count("\n") == 1 + 2 * 4
    assert "</html>" in (folder / "m.html").read_text()
    assert not (folder / "cache/links.json").exists()  # too small for a bandwidth


@pytest.mark.slow
def test_the_fit_of_large_messages_is_stored_for_timeouts(tmp_path):
    done = ended(*QUICK, "-b", "64K", "-e", "4M", "-f", "8", "-n", "8", folder=tmp_path)
    assert done.returncode == 0
    kept = json.loads((tmp_path / "cache/links.json").read_bytes())["fits"]
    assert [(fit["collective"], fit["ranks"], fit["largest_bytes"]) for fit in kept] == [
        ("all_reduce", 2, 4 << 20)
    ]


@pytest.mark.slow
def test_under_torchrun_each_process_is_a_rank_and_one_prints(tmp_path):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "holdfast"]
    done = ended("bench", "sendrecv", *QUICK, "--json", folder=tmp_path, command=command)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["measurement"]["hosts"][0]["ranks"] == [0, 1]


@pytest.mark.slow
def test_a_faster_baseline_is_a_finding(measured, tmp_path):
    text = json.loads((measured[1] / "m.json").read_bytes())
    for row in text["measurement"]["series"][0]["rows"]:
        row["in_place"]["p50_s"] /= 1000
    (tmp_path / "fast.json").write_text(json.dumps(text))
    done = ended(*QUICK, "--baseline", "fast.json", "--tolerance", "50%", folder=tmp_path)
    assert done.returncode == 1
    assert "times as long as in the baseline for messages up to 64 KiB" in " ".join(
        done.stdout.split()
    )


@pytest.mark.slow
def test_a_killed_rank_is_reported(tmp_path):
    torch = tmp_path / "torch"  # replaces the real module with one whose import kills the rank
    torch.mkdir()
    (torch / "__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    done = in_process(*QUICK, folder=tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("holdfast: the benchmark failed: rank 0 ended by signal 9")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all_reduc"], "unknown collective 'all_reduc'; did you mean all_reduce"),
        (["--dtype", "float3"], "unknown dtype 'float3'; did you mean float32"),
        (["--op", "average"], "unknown operation 'average'"),
        (["--op", "avg"], "gloo does not support avg"),
        (["--way", "chunks"], "unknown algorithm 'chunks'"),
        (["broadcast", "--way", "bf16"], "bf16 does not support broadcast (float32, sum)"),
        (["--min-bytes", "1M", "--max-bytes", "1K"], "1048576 is larger than --max-bytes"),
        (["--max-bytes", "lots"], "'lots' is not a size"),
        (["--max-bytes", "900G"], "GB are free; use a smaller size, or fewer ranks"),
        (["--factor", "1"], "1 does not increase sizes"),
        (["--limit", "soon"], "'soon' is not a duration"),
        (["--tolerance", "-3%"], "'-3%' is not a percentage"),
        (
            ["--html", "nowhere/page.html"],
            "cannot open nowhere/page.html: its folder does not exist",
        ),
        (["--baseline", "nowhere.json"], "cannot open nowhere.json"),
        (["--baseline", "."], "cannot open .: is a directory"),
    ],
)
def test_invalid_arguments_are_rejected_before_a_rank_starts(arguments, message, tmp_path):
    done = in_process(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_baseline_of_another_world_size_is_rejected_before_a_rank_starts(tmp_path):
    Path(tmp_path, "old.json").write_text('{"measurement": {"ranks": 64, "hosts": []}}')
    done = in_process("--baseline", "old.json", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "it was measured with 64 ranks, not 2; use --nproc-per-node 64, or create a new"
        in done.stderr
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(
            ["sendrecv", "--nproc-per-node", "1"],
            "it needs at least 2 ranks",
            marks=pytest.mark.matrix,
        ),
        (
            ["all_gather", "-e", "16"],
            "16 bytes of all_gather leave no element for each of 2 ranks, in steps of 16 bytes",
        ),
        pytest.param(
            ["--backend", "nccl"],
            "invalid value for --backend nccl: ",
            marks=pytest.mark.matrix,
        ),
        pytest.param(
            ["--backend", "nccl", "-e", "900G"],
            "invalid value for --backend nccl: ",
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_arguments_that_only_ranks_can_check_are_rejected(arguments, message, tmp_path):
    if "nccl" in arguments and Path("/proc/driver/nvidia").exists():
        pytest.skip("there may be GPUs here")
    done = ended(*arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (signal.SIGKILL, "rank 1 was killed (SIGKILL)"),
        pytest.param(
            signal.SIGSTOP,
            "rank 1 is stopped (SIGSTOP, or a debugger)",
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_a_rank_lost_during_the_benchmark_is_reported_within_the_limit(sent, message, tmp_path):
    running = started("-f", "1.05", "-n", "300", "--limit", "3s", folder=tmp_path)
    running.wait_for_output()  # the first row has been measured
    pid = running.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.kill(int(children[-1]), sent)
    done = running.result()
    assert (done.returncode, done.stderr) == (
        3,
        f"holdfast: the benchmark failed: {message}; check this host first: holdfast check\n",
    )

"""`holdfast run` with real processes on gloo: arguments, restarts, signals, invalid input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from holdfast.watcher import orphans
from holdfast.watcher.node import CHILDREN_EVERY_S
from tests.process.launched import wait_gone

HERE = Path(__file__).parent
PYTHON_RECORDER = ("--recorder", "python")  # needs no compiler

pytestmark = pytest.mark.slow


def read_reports(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]


# torchrun's arguments


def test_arguments_and_environment_equal_those_under_torchrun(launch, tmp_path):
    arguments = [
        "--nproc-per-node",
        "2",
        "--max_restarts=1",
        "--role",
        "trainer",
        HERE / "report_arguments.py",
    ]
    actual_folder, expected_folder = tmp_path / "ours", tmp_path / "theirs"
    for folder in (actual_folder, expected_folder):
        folder.mkdir()
    script_arguments = ["--max-restarts", "5", "--", "--preset", "help"]
    job = launch(*PYTHON_RECORDER, *arguments, actual_folder, *script_arguments)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *arguments,
        expected_folder,
        *script_arguments,
    ]
    subprocess.run(list(map(str, torchrun)), env=environment, check=True, capture_output=True)
    assert job.end() == 0
    actual = read_reports(actual_folder)
    assert [each["arguments"].pop(0) for each in actual] == [str(actual_folder)] * 2
    expected = read_reports(expected_folder)
    assert [each["arguments"].pop(0) for each in expected] == [str(expected_folder)] * 2
    assert actual == expected


def test_modules_and_programs_run(launch, tmp_path):
    (tmp_path / "prints_arguments.py").write_text(
        "import sys; print('module', __name__, sys.argv[1:])"
    )
    module = launch(*PYTHON_RECORDER, "--module", "prints_arguments", "--flag", folder=tmp_path)
    program = launch(
        "--no-python", "/bin/sh", "-c", "echo program $RANK; exit 4", folder=tmp_path / "program"
    )
    assert (module.end(), program.end()) == (0, 1)
    assert "[rank0]: module __main__ ['--flag']" in module.output
    assert "[rank0]: program 0" in program.output
    assert "rank 0 ended with status 4" in program.output


def test_a_failed_job_has_the_status_of_torchrun_and_a_verdict(launch, tmp_path):
    job = launch(
        *PYTHON_RECORDER,
        "--json-report",
        "report.json",
        HERE / "report_arguments.py",
        tmp_path,
        "--status",
        "3",
    )
    assert job.end() == 1
    assert "Root Cause (first observed failure)" not in job.output
    assert "holdfast: the job failed; report: " in job.output
    report = job.json("report.json")
    assert report["schema"], report["command"] == ("holdfast/1", "run")
    assert (report["status"], report["restarts"]) == (1, 0)
    assert report["verdict"]["root"]["subject"]["rank"] == 0
    assert report["findings"][0] == report["verdict"]["root"]
    (incident,) = report["incidents"]
    assert (incident["decision"], incident["generation"]) == ("stop", 0)
    assert Path(incident["html"]).is_file()
    assert (Path(incident["folder"]) / "traces/rank0.trace").is_file()
    assert job.trace_files() == []


def test_a_successful_job_keeps_logs_and_no_trace_files(launch, tmp_path):
    (tmp_path / "talk.py").write_text("import sys; print('out'); print('err', file=sys.stderr)")
    job = launch(
        "--nproc-per-node", "2", *PYTHON_RECORDER, "--json-report", "report.json", "talk.py"
    )
    assert job.end() == 0
    logs = {
        str(path.relative_to(job.run / "logs")): path.read_text()
        for path in job.run.glob("logs/**/*.log")
    }
    texts = {"stdout": "out\n", "stderr": "err\n"}
    assert logs == {
        f"generation0/rank{rank}/{name}.log": text
        for rank in (0, 1)
        for name, text in texts.items()
    }
    assert sorted(line for line in job.output.splitlines() if line.startswith("[rank")) == sorted(
        f"[rank{rank}]: {text}" for rank in (0, 1) for text in ("out", "err")
    )
    assert "/torch/" not in job.output
    assert job.json("report.json")["verdict"]["root"] is None
    assert (job.trace_files(), list((job.run / "incidents").iterdir())) == ([], [])


def test_log_options_of_the_user_apply(launch, tmp_path):
    (tmp_path / "talk.py").write_text("print('out')")
    job = launch(*PYTHON_RECORDER, "--log-dir", "own", "--redirects", "3", "talk.py")
    assert job.end() == 0
    assert "out" not in job.output.replace("output", "")
    assert [path.read_text() for path in tmp_path.glob("own/**/stdout.log")] == ["out\n"]


# Restarts


KINDS = {
    "standalone": ["--standalone"],
    "c10d": ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:{port}", "--rdzv-id", "stale"],
    "static": ["--master-addr", "127.0.0.1", "--master-port", "{port}"],
}


def run_stale_store(launch, kind, port, folder):
    where = [text.format(port=port) for text in KINDS[kind]]
    job = launch(
        *where,
        "--nproc-per-node",
        2,
        "--max-restarts",
        2,
        *PYTHON_RECORDER,
        HERE / "stale_store.py",
        folder=folder,
    )
    assert job.end() == 0, job.output
    assert job.output.count("generation 1 rank") == 2, job.output
    assert "generation 2" not in job.output


@pytest.mark.parametrize(
    "kind",
    ["standalone", *(pytest.param(kind, marks=pytest.mark.matrix) for kind in ("c10d", "static"))],
)
def test_a_restarted_rank_does_not_read_the_store_of_the_dead_generation(launch, free_port, kind):
    run_stale_store(launch, kind, free_port, None)


@pytest.mark.matrix
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_fifty_restarts_do_not_read_a_stale_store(launch, free_port, kind):
    for number in range(50):
        run_stale_store(launch, kind, free_port, f"{number}")


@pytest.mark.parametrize("kind", ["c10d", pytest.param("static", marks=pytest.mark.matrix)])
def test_two_nodes_restart_together(launch, free_port, kind):
    where = [text.format(port=free_port) for text in KINDS[kind]]
    common = (
        *where,
        "--local-addr",
        "127.0.0.1",
        "--nnodes",
        2,
        "--max-restarts",
        1,
        *PYTHON_RECORDER,
    )
    nodes = [
        launch(
            *common,
            "--node-rank",
            node,
            "--json-report",
            "report.json",
            HERE / "stale_store.py",
            folder=f"node{node}",
        )
        for node in (0, 1)
    ]
    assert [node.end() for node in nodes] == [0, 0]
    for node in nodes:
        assert node.output.count("holdfast: generation 1: rank") == 1, node.output
        report = node.json("report.json")
        assert [incident["decision"] for incident in report["incidents"]] == ["restart"]
        assert report["verdict"]["root"]["subject"]["rank"] == 1, node.output
    assert sum("another node decided" in node.output for node in nodes) == 1


@pytest.mark.matrix
def test_a_finished_node_restarts_if_another_fails_later(launch, free_port, tmp_path):
    (tmp_path / "late.py").write_text(
        "import os, time\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and os.environ['RANK'] == '1':\n"
        "    time.sleep(2); os._exit(5)\n"
    )
    common = (
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        free_port,
        "--nnodes",
        2,
        "--max-restarts",
        1,
    )
    nodes = [
        launch(
            *common,
            "--node-rank",
            node,
            *PYTHON_RECORDER,
            tmp_path / "late.py",
            folder=f"node{node}",
        )
        for node in (0, 1)
    ]
    assert [node.end() for node in nodes] == [0, 0]
    assert all("holdfast: generation 1" in node.output for node in nodes)


@pytest.mark.matrix
def test_a_hang_on_another_node_restarts_all_nodes(launch, free_port, tmp_path):
    (tmp_path / "hangs.py").write_text(
        "import os, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "for step in range(40):\n"
        "    dist.all_reduce(torch.ones(1))\n"
        "    if step == 20 and dist.get_rank() == 1 and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "        time.sleep(1000)\n"
        "print('done', flush=True)\n"
        "dist.destroy_process_group()\n"
    )
    common = (
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        free_port,
        "--nnodes",
        2,
        "--max-restarts",
        1,
    )
    script = (
        *PYTHON_RECORDER,
        "--act-after",
        "5s",
        "--json-report",
        "report.json",
        tmp_path / "hangs.py",
    )
    nodes = [
        launch(
            *common, "--node-rank", node, *script, folder=f"node{node}", HOLDFAST_FIRST_STEP_S="6"
        )
        for node in (0, 1)
    ]
    assert [node.end() for node in nodes] == [0, 0]
    for node in nodes:
        assert "done" in node.output
        root = node.json("report.json")["verdict"]["root"]
        # The stack comes from the watcher of the hung rank's node.
        assert (root["subject"]["rank"], root["subject"]["line"]) == (1, 6), root


def test_a_node_joins_later(launch, free_port, tmp_path):
    (tmp_path / "grows.py").write_text(
        "import os, time\n"
        "print('world', os.environ['WORLD_SIZE'], flush=True)\n"
        "time.sleep(1000 if os.environ['WORLD_SIZE'] == '1' else 0)\n"
    )
    where = [text.format(port=free_port) for text in KINDS["c10d"]]
    common = (
        *where,
        "--local-addr",
        "127.0.0.1",
        "--nnodes",
        "1:2",
        "--rdzv-conf",
        "last_call_timeout=1",
    )
    first = launch(*common, *PYTHON_RECORDER, tmp_path / "grows.py", folder="first").wait_for(
        "world 1"
    )
    second = launch(*common, *PYTHON_RECORDER, tmp_path / "grows.py", folder="second")
    # With torchrun 2.13 the second node waits forever.
    assert [first.end(), second.end()] == [0, 0]
    assert ("world 2" in first.output, "world 2" in second.output) == (True, True)


def test_all_nodes_stop_if_no_restart_is_left(launch, free_port):
    common = (
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        free_port,
        "--nnodes",
        2,
        *PYTHON_RECORDER,
    )
    nodes = [
        launch(*common, "--node-rank", node, HERE / "stale_store.py", folder=f"node{node}")
        for node in (0, 1)
    ]
    assert [node.end() for node in nodes] == [1, 1]
    assert all("--max-restarts allows no restart" in node.output for node in nodes)


@pytest.mark.matrix
def test_a_frozen_worker_does_not_delay_the_restart(launch):
    job = launch(
        "--nproc-per-node",
        2,
        "--max-restarts",
        1,
        *PYTHON_RECORDER,
        HERE / "sleeper.py",
        "--frozen",
        "--dies",
    )
    job.wait_for("ready", times=2)
    first = job.family()
    start = time.monotonic()
    job.wait_for("holdfast: generation 1")
    # Includes 1 s of the script and up to 8 s of the watcher.
    assert time.monotonic() - start < 15
    assert job.end() == 0
    assert (
        wait_gone(
            [
                each
                for each in first
                if each.pid != job.json(f"runs/{job.run.name}/run.json")["watcher"]
            ]
        )
        == []
    )


def test_a_traceback_names_its_rank_once(launch, tmp_path):
    script = tmp_path / "raises.py"
    script.write_text(
        "import torch.distributed as dist; dist.init_process_group('gloo'); raise ValueError('broken')"
    )
    job = launch("--nproc-per-node", 2, *PYTHON_RECORDER, script)
    assert job.end() == 1
    assert "[rank0]: ValueError: broken" in job.output
    assert "]: [rank" not in job.output  # torch's excepthook would add the prefix again


def test_the_job_continues_after_its_watcher_is_killed(launch, tmp_path):
    (tmp_path / "slow.py").write_text(
        "import time; print('begun', flush=True); time.sleep(3); print('done')"
    )
    job = launch(*PYTHON_RECORDER, "slow.py").wait_for("begun")
    psutil.Process(job.json(f"runs/{job.run.name}/run.json")["watcher"]).kill()
    assert job.end() == 0
    assert job.output.count("the watcher exited") == 1
    assert "[rank0]: done" in job.output


# Signals


@pytest.mark.parametrize(
    "signal_number", [pytest.param(signal.SIGINT, marks=pytest.mark.matrix), signal.SIGTERM]
)
def test_a_signal_ends_all_processes_and_removes_trace_files(launch, signal_number):
    job = launch("--nproc-per-node", 2, *PYTHON_RECORDER, HERE / "sleeper.py").wait_for(
        "ready", times=2
    )
    family = job.family()
    assert len(family) >= 9  # two workers with three children each, the watcher
    assert job.send(signal_number).end() == 1
    assert (wait_gone(family), job.trace_files()) == ([], [])
    assert "Traceback" not in "".join(
        line for line in job.output.splitlines() if not line.startswith("[rank")
    )


@pytest.mark.parametrize(
    "how", [(), pytest.param(("--stubborn",), marks=pytest.mark.matrix)], ids=["polite", "stubborn"]
)
def test_all_processes_end_after_the_agent_is_killed(launch, how):
    job = launch("--nproc-per-node", 2, *PYTHON_RECORDER, HERE / "sleeper.py", *how).wait_for(
        "ready", times=2
    )
    time.sleep(2 * CHILDREN_EVERY_S + 1)  # a busy watcher skips a turn
    family = job.family()
    assert job.send(signal.SIGKILL).end() == -signal.SIGKILL
    assert (wait_gone(family, limit_s=orphans.GRACE_S + 10), job.trace_files()) == ([], [])
    assert len(list((job.run / "orphaned").glob("rank*.trace"))) == 2


def test_the_second_signal_kills_all_processes(launch):
    job = launch(
        "--nproc-per-node", 2, *PYTHON_RECORDER, HERE / "sleeper.py", "--stubborn"
    ).wait_for("ready", times=2)
    family = job.family()
    job.send(signal.SIGINT).wait_for("no\n", times=2)
    start = time.monotonic()
    assert job.send(signal.SIGINT).end() == 130
    assert time.monotonic() - start < 5
    assert (wait_gone(family), job.trace_files()) == ([], [])


def test_a_signal_is_handled_during_the_rendezvous(launch, free_port):
    common = (
        "--master-addr",
        "127.0.0.1",
        "--master-port",
        free_port,
        "--nnodes",
        2,
        *PYTHON_RECORDER,
    )
    job = launch(*common, HERE / "stale_store.py").wait_for("waiting for the other nodes")
    start = time.monotonic()
    assert job.send(signal.SIGTERM).end() == 1
    assert time.monotonic() - start < 5
    assert job.trace_files() == []


# Invalid input: one sentence, no traceback; see also tests/unit/cli/test_run.py


@pytest.mark.parametrize(
    "where",
    [
        [
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            "{port}",
            "--node-rank",
            "1",
            "--rdzv-conf",
            "timeout=3",
        ],
        [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "127.0.0.1:{port}",
            "--rdzv-conf",
            "is_host=0,read_timeout=3",
        ],
    ],
    ids=["static", "c10d"],
)
def test_an_unreachable_rendezvous_is_reported(launch, free_port, where):
    arguments = [text.format(port=free_port) for text in where]
    job = launch(
        "--nnodes",
        2,
        *arguments,
        *PYTHON_RECORDER,
        HERE / "report_arguments.py",
        TORCH_CPP_LOG_LEVEL="ERROR",
    )
    assert job.end() == 2, job.output
    (line,) = job.output.splitlines()
    assert line.startswith(f"holdfast: cannot reach the rendezvous at 127.0.0.1:{free_port}: ")
    assert job.trace_files() == []


def test_an_ineffective_variable_is_reported(launch, tmp_path):
    (tmp_path / "empty.py").write_text("")
    job = launch(*PYTHON_RECORDER, "empty.py", NCCL_TIMEOUT="1800")
    assert job.end() == 0
    assert "NCCL_TIMEOUT=1800 has no effect" in job.output


def test_a_preset_sets_only_unset_variables(launch, tmp_path):
    (tmp_path / "show.py").write_text(
        "import os; print([os.environ.get(name) for name in ('OMP_NUM_THREADS', 'TORCH_NCCL_DUMP_ON_TIMEOUT')])"
    )
    job = launch(*PYTHON_RECORDER, "--preset", "basic", "show.py", OMP_NUM_THREADS="3")
    assert job.end() == 0
    assert "[rank0]: ['3', '1']" in job.output
    readings = {
        each["name"]: each["origin"]
        for each in job.json(f"runs/{job.run.name}/run.json")["settings"]
    }
    assert readings["OMP_NUM_THREADS"] == "environment"
    assert readings["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "preset basic"

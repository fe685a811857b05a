"""`holdfast attach` on ranks that a script started itself, without a launcher or below one."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.fork_server import fork_server
from tests.forked_programs import run_forking
from tests.ports import free_port

pytestmark = pytest.mark.slow
LIMIT_S = 90
PROGRAM = Path(__file__).with_name("spawns.py")
LIGHTNING = Path(__file__).with_name("lightning_trains.py")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1")


def guilty_line(program):
    lines = program.read_text().splitlines()
    (line,) = (at for at, text in enumerate(lines, 1) if text.endswith("# GUILTY"))
    return line


LINE = guilty_line(PROGRAM)


@contextmanager
def started(folder, how, ready, *launcher, program=PROGRAM, imports=(), **variables):
    """Start the program, forked, and wait for ``ready`` processes; yield its pid and rendezvous port.

    It is copied to ``folder``, so that ``--name`` finds no job of another test.
    """
    port = 0 if launcher else free_port()
    script = shutil.copy(program, folder)
    rank_variables = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    environment = {
        name: text for name, text in os.environ.items() if name not in rank_variables
    } | {"OMP_NUM_THREADS": "1"}
    output = folder / "output"
    with output.open("wb") as file:
        process = fork_server(*imports).start(
            run_forking,
            *(*launcher, str(script), how, str(port)),
            environment=environment | variables,
            stdout=file,
        )
    try:
        until = time.monotonic() + LIMIT_S
        while output.read_text().count("ready") < ready:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(1)  # the other ranks reach the collective
        yield process.pid, port
    finally:
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            with suppress(psutil.NoSuchProcess):  # torch ends the others when one has died
                each.kill()
        process.wait(LIMIT_S)


def attach(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "attach", "--json", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


@pytest.mark.parametrize(
    "how",
    ["spawn", *(pytest.param(how, marks=pytest.mark.matrix) for how in ("forkserver", "fork"))],
)
def test_spawned_ranks_are_numbered_in_start_order(how, tmp_path):
    with started(tmp_path, how, 3) as (pid, port):
        status, report, errors = attach(*(("--pid", pid) if how == "spawn" else ("--port", port)))
    assert errors == ""
    root = report["verdict"]["root"]
    assert (status, root["cause"]) == (1, "rank-missing-collective")
    assert (root["subject"]["rank"], root["subject"]["line"]) == (1, LINE), report["verdict"][
        "unseen"
    ]
    assert len(report["samples"]["ranks"]) == report["samples"]["world_size"] == 3
    assert (report["job"]["script"], report["job"]["launcher_pid"]) == ("spawns.py", pid)
    script = f"{tmp_path / PROGRAM.name} {how} {port}"
    commands = [remedy["command"] or "" for remedy in root["remedies"]]
    # The script starts its ranks itself.
    assert not any("--nproc-per-node" in each for each in commands), commands
    assert any(each.endswith(script) for each in commands), commands
    assert any("numbered in the order in which" in text for text in report["verdict"]["unseen"])


@pytest.mark.matrix
def test_node_number_is_the_offset_of_spawned_ranks(tmp_path):
    with started(tmp_path, "fork", 3, SLURM_PROCID="1", SLURM_NTASKS="2") as (pid, _):
        status, report, _ = attach("--pid", pid)
    assert (status, report["verdict"]["root"]["subject"]["rank"]) == (1, 4)
    assert [state["rank"] for state in report["samples"]["ranks"]] == [3, 4, 5]
    assert "ranks 0-2: not on the inspected hosts" in report["verdict"]["unseen"]


def test_ranks_spawned_by_a_script_under_torchrun_are_found_by_its_name(tmp_path):
    with started(tmp_path, "spawn", 3, *TORCHRUN):
        status, report, errors = attach("--name", tmp_path)
    assert errors == ""
    root = report["verdict"]["root"]
    assert (status, root["subject"]["rank"], root["subject"]["line"]) == (1, 1, LINE)
    assert [state["rank"] for state in report["samples"]["ranks"]] == [0, 1, 2]


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs lightning")
@pytest.mark.parametrize(
    "strategy",
    ["ddp", *(pytest.param(f"ddp_{how}", marks=pytest.mark.matrix) for how in ("spawn", "fork"))],
)
def test_the_ranks_of_lightnings_own_launchers_are_found_by_their_script(strategy, tmp_path):
    with started(tmp_path, strategy, 2, program=LIGHTNING, imports=("lightning",)) as (pid, _):
        status, report, errors = attach("--name", tmp_path)
    assert errors == ""
    root = report["verdict"]["root"]
    assert (status, root["cause"]) == (1, "rank-missing-collective")
    assert (root["subject"]["rank"], root["subject"]["line"]) == (1, guilty_line(LIGHTNING))
    assert len(report["samples"]["ranks"]) == report["samples"]["world_size"] == 2
    assert (report["job"]["script"], report["job"]["launcher_pid"]) == (LIGHTNING.name, pid)


@pytest.mark.matrix
def test_spawned_workers_are_not_ranks(tmp_path):
    with started(tmp_path, "workers", 1) as (_, port):
        status, report, errors = attach("--port", port)
    assert (status, report) == (2, None)
    assert "no training job found" in errors

"""`holdfast attach` and ranks to which nobody but their own script gave a number."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.ports import free_port

pytestmark = pytest.mark.slow
LIMIT_S = 90
PROGRAM = Path(__file__).with_name("spawns.py")
(LINE,) = (at for at, text in enumerate(PROGRAM.read_text().splitlines(), 1) if text.endswith("# GUILTY"))


@contextmanager
def started(folder, how, ready, **variables):
    """The program, once so many processes are ready; yields its process id and the port of the rendezvous."""
    port = free_port()
    named = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}
    environment = {name: text for name, text in os.environ.items() if name not in named} | {"OMP_NUM_THREADS": "1"}
    output = folder / "output"
    with output.open("wb") as file:
        script = subprocess.Popen([sys.executable, PROGRAM, how, str(port)], env=environment | variables, stdout=file)
    try:
        until = time.monotonic() + LIMIT_S
        while output.read_text().count("ready") < ready:
            assert time.monotonic() < until
            assert script.poll() is None
            time.sleep(0.1)
        time.sleep(1)  # the others come to where they wait
        yield script.pid, port
    finally:
        for each in [*psutil.Process(script.pid).children(recursive=True), script]:
            each.kill()
        script.wait()


def attach(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "attach", "--json", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


@pytest.mark.parametrize(
    "how", ["spawn", *(pytest.param(how, marks=pytest.mark.matrix) for how in ("forkserver", "fork"))]
)
def test_ranks_that_the_script_started_are_found_and_numbered_as_they_were_started(how, tmp_path):
    with started(tmp_path, how, 3) as (pid, port):
        status, said, errors = attach(*(("--pid", pid) if how == "spawn" else ("--port", port)))
    assert errors == ""
    root = said["verdict"]["root"]
    assert (status, root["cause"]) == (1, "rank-missing-collective")
    assert (root["subject"]["rank"], root["subject"]["line"]) == (1, LINE), said["verdict"]["unseen"]
    assert len(said["samples"]["ranks"]) == said["samples"]["world_size"] == 3
    assert (said["job"]["script"], said["job"]["launcher_pid"]) == ("spawns.py", pid)
    assert any("numbered in the order in which" in text for text in said["verdict"]["unseen"])


def test_where_one_script_a_node_was_started_its_number_says_which_ranks_are_its_own(tmp_path):
    with started(tmp_path, "fork", 3, SLURM_PROCID="1", SLURM_NTASKS="2") as (pid, _):
        status, said, _ = attach("--pid", pid)
    assert (status, said["verdict"]["root"]["subject"]["rank"]) == (1, 4)
    assert [state["rank"] for state in said["samples"]["ranks"]] == [3, 4, 5]
    assert "ranks 0-2: not on the hosts that were looked at" in said["verdict"]["unseen"]


def test_spawned_workers_are_no_ranks(tmp_path):
    with started(tmp_path, "workers", 1) as (_, port):
        status, said, errors = attach("--port", port)
    assert (status, said) == (2, None)
    assert "found no training job" in errors

"""`holdfast attach` from the host on ranks in a container: own pids, files, network and /dev/shm."""

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

from holdfast.host.processes import namespaces
from tests.fork_server import fork_server
from tests.forked_programs import run_forking
from tests.process.nodes import LIMIT_S, wait

CONTAINER = ("unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child")
ENTER = (*CONTAINER, "--mount-proc", "bash", "-ec")


def why_not():
    try:
        done = subprocess.run([*ENTER, "true"], capture_output=True, check=False, timeout=30)
    except OSError as error:
        return str(error)
    return done.stderr.decode() if done.returncode else ""


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(why_not()), reason=f"no namespaces: {why_not()}"),
]
SPAWNS = Path(__file__).with_name("spawns.py")
LAUNCHERS = {
    "torchrun": "-m torch.distributed.run --standalone --nproc-per-node 3 job/train.py",
    "run": "-m holdfast run --act-after 600s --nproc-per-node 3 job/train.py",
    "spawn": "job/spawns.py spawn 29633",
}
#: The folder of the script exists in the container only; the host has another file at its path.
SETUP = """
ip link set lo up
mount -t tmpfs none /dev/shm
mount -t tmpfs none job
cp train spawns.py job/
mv job/train job/train.py
touch begun
exec sleep infinity
"""
PROGRAM = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(100):
    if step == 20:
        print("ready", flush=True)
        if dist.get_rank() == 1:
            time.sleep(600)  # GUILTY
    dist.all_reduce(torch.ones(4))
"""


@contextmanager
def container(folder, command):
    """Start the command, forked, in a container; yield its pid when it is ready."""
    (folder / "job").mkdir()
    (folder / "job" / "train.py").write_text("this is another file\n" * 9)
    (folder / "train").write_text(PROGRAM)
    (folder / "spawns.py").write_bytes(SPAWNS.read_bytes())
    environment = {name: text for name, text in os.environ.items() if "HOLDFAST" not in name}
    holder = subprocess.Popen([*ENTER, SETUP], cwd=folder)
    try:
        wait((folder / "begun").exists, lambda: "the container has not started")
        output = folder / "output"
        with output.open("wb") as file:
            process = fork_server().start(
                run_forking,
                *command.split(),
                environment=environment | {"OMP_NUM_THREADS": "1"},
                folder=folder,
                stdout=file,
                stderr=file,
                inside=psutil.Process(holder.pid).children()[0].pid,
            )
        wait(lambda: output.read_text().count("ready") == 3, output.read_text)
        # The other ranks reach the collective; with the recorder, the job counts as stalled.
        time.sleep(6 if "holdfast" in command else 1)
        yield psutil.Process(process.pid).children()[0].pid
    finally:
        holder.kill()  # ends all processes of its PID namespace
        holder.wait()


@pytest.mark.parametrize(
    "launcher",
    ["torchrun", *(pytest.param(name, marks=pytest.mark.matrix) for name in ("run", "spawn"))],
)
def test_root_has_rank_and_line_of_the_file_in_the_container(launcher, tmp_path):
    program = SPAWNS.read_text() if launcher == "spawn" else PROGRAM
    lines = [number for number, text in enumerate(program.splitlines(), 1) if "# GUILTY" in text]
    with container(tmp_path, LAUNCHERS[launcher]) as pid:
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", "attach", "--json", "--pid", str(pid)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert done.stderr == ""
        root = json.loads(done.stdout)["verdict"]["root"]
        assert (root["cause"], root["subject"]["rank"]) == ("rank-missing-collective", 1)
        assert [root["subject"]["line"]] == lines
        assert LAUNCHERS[launcher].split("job/")[1] in root["remedies"][-1]["command"]
        assert "SCRIPT" not in done.stdout
        if launcher != "run":  # the recorder's paths are those of the container
            assert Path(root["subject"]["file"]).read_text() == program
    assert done.returncode == 1


def test_a_process_of_this_host_has_its_own_pid_and_files():
    assert namespaces.own_pid(os.getpid()) == os.getpid()
    assert namespaces.file_root(os.getpid()) == ""

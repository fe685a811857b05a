"""`holdfast attach` on real torchrun jobs: it reports rank and line and does not modify the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.specimens.expected import EXPECTED, guilty_line, place
from tests.fork_server import fork_server
from tests.forked_programs import run_forking
from tests.ports import free_port

pytestmark = pytest.mark.slow
LIMIT_S = 90


class TorchrunJob:
    """A specimen under plain torchrun, forked; all its processes are killed at the end."""

    def __init__(
        self, folder: Path, program: str | Path, *, processes: int = 4, **variables: str
    ) -> None:
        self.port = free_port()
        self._output = folder / "output.txt"
        launch = ("-m", "torch.distributed.run", "--nproc-per-node", str(processes))
        environment = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("HOLDFAST_", "PET_"))
        } | {"OMP_NUM_THREADS": "1"}
        script = str(place(program) if isinstance(program, str) else program)
        with self._output.open("wb") as output:
            self.process = fork_server().start(
                run_forking,
                *(*launch, "--master-port", str(self.port), script),
                folder=folder,
                environment=environment | variables,
                stdout=output,
                stderr=output,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        family = (
            psutil.Process(self.process.pid).children(recursive=True)
            if self.process.poll() is None
            else []
        )
        for each in [*family, self.process]:
            each.kill()
        self.process.wait(LIMIT_S)

    def ranks(self):
        return [
            each
            for each in psutil.Process(self.process.pid).children()
            if ".py" in " ".join(each.cmdline())
        ]

    def wait_for(self, text, times=1):
        until = time.monotonic() + LIMIT_S
        while self._output.read_text(errors="replace").count(text) < times:
            assert time.monotonic() < until, self._output.read_text()
            assert self.process.poll() is None, self._output.read_text()
            time.sleep(0.1)
        return self

    def wait_until_still(self):
        """Wait until no rank uses CPU time, which means that the job hangs."""
        until, before = time.monotonic() + LIMIT_S, None
        while time.monotonic() < until:
            used = [sum(each.cpu_times()[:2]) for each in self.ranks()]
            if before is not None and len(used) == len(before) and sum(used) - sum(before) <= 0.05:
                return self
            before = used
            time.sleep(1.5)
        raise AssertionError("the job did not become idle")

    def state(self):
        """Return what attach must not change: state, signal handlers and open files per process."""
        states = {}
        for each in self.ranks():
            status = Path(f"/proc/{each.pid}/status").read_text().splitlines()
            lines = [
                line
                for line in status
                if line.startswith(("SigCgt", "SigIgn", "TracerPid", "Threads"))
            ]
            stopped = each.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            states[each.pid] = (lines, stopped, each.num_fds())
        return states


def attach(*arguments, **variables):
    """Run `holdfast attach --json`; return exit status, document (None without one) and stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "attach", "--json", *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "ddp_rank_sleeps",
        *(
            pytest.param(name, marks=pytest.mark.matrix)
            for name in ("sigstopped", "rank_sleeps", "rank0_validates")
        ),
    ],
)
def test_root_has_rank_and_line_and_the_job_is_unchanged(name, tmp_path):
    with (
        TorchrunJob(tmp_path, name)
        .wait_for("step 20" if name != "rank0_validates" else "step 0")
        .wait_until_still() as job
    ):
        before = job.state()
        status, report, errors = attach("--pid", job.process.pid)
        assert job.state() == before
        assert errors == ""
    root, expected = report["verdict"]["root"], EXPECTED[name]
    assert (status, root["cause"], root["subject"]["rank"]) == (
        1,
        expected.causes[0],
        expected.ranks[0],
    )
    assert root["subject"]["line"] == guilty_line(name)
    assert report["findings"][0] == root
    assert report["job"]["launcher"] == "torchrun"
    assert len(report["samples"]["ranks"]) == 4
    assert report["stacks"][0]["branches"][0]["ranks"] == [0, 1, 2, 3]


def test_healthy_job_yields_no_finding_and_continues(tmp_path):
    with TorchrunJob(tmp_path, "straggler").wait_for("step 0") as job:
        for _ in range(3):  # on a busy machine two samples may be too few to tell (status 3)
            status, report, _ = attach("--port", job.port)
            assert (status in (0, 3), report["findings"], report["verdict"]["root"]) == (
                True,
                [],
                None,
            )
            if status == 0:
                break
        assert status == 0
        assert not any(stopped for _, stopped, _ in job.state().values())


@pytest.mark.matrix
@pytest.mark.skipif(
    not Path("/proc/self/sched").exists(), reason="this kernel has no /proc/self/sched"
)
def test_long_steps_are_not_a_hang(tmp_path):
    with TorchrunJob(tmp_path, Path(__file__).with_name("long_steps.py"), processes=3).wait_for(
        "step 1"
    ) as job:
        for _ in range(3):
            status, report, _ = attach("--port", job.port)
            assert (status, report["findings"]) == (0, [])


def test_flight_recorder_dumps_are_requested(tmp_path):
    variables = {
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{tmp_path}/pipe",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/d",
    }
    program = Path(__file__).with_name("listens.py")
    with TorchrunJob(tmp_path, program, processes=3, **variables).wait_for(
        "listens", times=3
    ) as job:
        status, report, _ = attach("--pid", job.process.pid)
    root = report["verdict"]["root"]
    assert (status, root["cause"], root["subject"]["rank"]) == (1, "rank-missing-collective", 1)
    assert "all_reduce #31" in root["message"]
    (line,) = (
        at
        for at, text in enumerate(program.read_text().splitlines(), 1)
        if text.endswith("# GUILTY")
    )
    assert root["subject"]["line"] == line


@pytest.mark.matrix
def test_reports_of_hosts_are_merged_and_a_failed_host_is_unseen(tmp_path):
    """Use a fake ssh, which runs the command locally or fails, depending on the host name."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        '#!/bin/sh\nwhile [ "$1" = -o ]; do shift 2; done\n'
        '[ "$1" = dead ] && { echo "ssh: connect to host dead port 22: No route to host" >&2; exit 255; }\n'
        'shift\necho Welcome to this cluster\neval exec "$*"\n'
    )
    ssh.chmod(0o755)
    with TorchrunJob(tmp_path, "rank_sleeps").wait_for("step 20").wait_until_still() as job:
        path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        status, report, _ = attach("--port", job.port, "--hosts", "here,dead", PATH=path)
    assert (status, report["verdict"]["root"]["subject"]["rank"]) == (1, 2)
    assert any("dead" in text and "No route" in text for text in report["verdict"]["unseen"])


@pytest.mark.matrix
def test_several_jobs_are_listed(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with (
        TorchrunJob(tmp_path / "a", "sigstopped", processes=2).wait_for("step 20") as one,
        TorchrunJob(tmp_path / "b", "sigstopped", processes=2).wait_for("step 20") as other,
    ):
        status, report, errors = attach("--pid", one.process.pid, "--pid", other.process.pid)
        assert (status, report) == (2, None)
        assert errors.count("\n") == 1
        assert f"--pid {one.process.pid}" in errors
        assert f"--pid {other.process.pid}" in errors


@pytest.mark.parametrize(
    "search", [("--pid", 2**22 - 1), ("--name", "no such job anywhere"), ("--port", 1)]
)
def test_no_matching_job_is_reported_in_one_line(search):
    status, report, errors = attach(*search)
    assert (status, report, errors.count("\n")) == (2, None, 1)
    assert "no training job found" in errors

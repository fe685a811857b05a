"""`holdfast run` where the system forbids something: read-only folders, no /dev/shm, no ptrace."""

import json
import os
import subprocess
import tempfile
from contextlib import contextmanager

import pytest

from tests.fork_server import fork_server
from tests.forked_programs import run_forking
from tests.process import nodes
from tests.process.without_ptrace import run_without_ptrace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(nodes.why_not()), reason=f"no namespaces: {nodes.why_not()}"),
]
REDUCES = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total))
dist.destroy_process_group()
"""
HANGS = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    time.sleep(1000)
dist.all_reduce(torch.ones(1))
"""


def run(folder, how=run_forking, *, arguments=(), program=REDUCES, inside=0, **variables):
    """Run a job of two forked ranks, in the namespaces of a process; return exit status and output."""
    (folder / "program.py").write_text(program)
    with tempfile.TemporaryFile("w+") as output:
        job = fork_server().start(
            how,
            *("-m", "holdfast", "run", "--recorder", "python", "--no-gate"),
            *("--nproc-per-node", "2", *arguments, "program.py"),
            folder=folder,
            environment={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **variables},
            stdout=output,
            stderr=output,
            inside=inside,
        )
        try:
            status = job.wait(100)
        finally:
            job.kill()
        output.seek(0)
        return status, output.read()


@contextmanager
def mounts(*lines):
    """Yield the id of a process that sees other mounts."""
    command = ("unshare", *nodes.AS_NON_ROOT, "--mount", "sh", "-ec")
    script = "\n".join((*lines, "echo ready", "exec sleep infinity"))
    with subprocess.Popen([*command, script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def test_a_read_only_folder_without_shared_memory(tmp_path):
    folder, temporary = tmp_path / "here", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    with mounts(
        f"mount --bind {folder} {folder}",
        f"mount -o remount,ro,bind {folder}",
        "mount -t tmpfs -o size=4k none /dev/shm",
    ) as process:
        status, output = run(folder, inside=process, TMPDIR=str(temporary))
    assert status == 0, output
    assert output.count("sum 2") == 2
    assert f"{folder} is not writable: the run folder is in {temporary}" in output
    assert "trace files are written to" in output
    assert len(list(temporary.glob("holdfast-runs-*/*/run.json"))) == 1


def test_a_pid_namespace(tmp_path):
    with nodes.Node(tmp_path / "node") as node:
        status, output = run(tmp_path, inside=node.pid)
    assert status == 0, output
    assert output.count("sum 2") == 2


def test_ptrace_refused(tmp_path):
    """The stacks then come from the ranks themselves."""
    status, output = run(
        tmp_path,
        run_without_ptrace,
        arguments=("--act-after", "2s", "--json-report", "report.json"),
        program=HANGS,
        HOLDFAST_FIRST_STEP_S="3",
    )
    assert status == 1, output
    root = json.loads((tmp_path / "report.json").read_text())["verdict"]["root"]
    assert (root["subject"]["rank"], root["subject"]["line"]) == (1, 6), output


def test_a_report_that_cannot_be_written_does_not_fail_the_job(launch, tmp_path):
    (tmp_path / "reports").mkdir()
    (tmp_path / "program.py").write_text("import shutil; shutil.rmtree('reports')")
    job = launch("--json-report", "reports/report.json", "program.py")
    assert job.end() == 0, job.output
    assert job.output.count("no JSON report: cannot open reports/report.json") == 1

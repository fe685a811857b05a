"""`holdfast run` where the system forbids something: read-only folders, no /dev/shm, no ptrace."""

import json
import os
import subprocess
import sys

import pytest

from tests.process import nodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(nodes.why_not()), reason=f"no namespaces: {nodes.why_not()}"),
]
MOUNTS = ("unshare", *nodes.AS_NON_ROOT, "--mount", "sh", "-c")
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
#: Refuses ptrace(2) and process_vm_readv(2), as container runtimes do, and runs a program.
REFUSE_PTRACE = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
syscalls = {"x86_64": (101, 310), "aarch64": (117, 270)}[os.uname().machine]
lines = [(0x20, 0, 0, 0)]                                   # load the number of the system call
lines += [(0x15, len(syscalls) - at, 0, number) for at, number in enumerate(syscalls)]
lines += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]    # allow; fail with EPERM
program = b"".join(struct.pack("HBBI", *line) for line in lines)
buffer = ctypes.create_string_buffer(program)
class Filter(ctypes.Structure):
    _fields_ = [("size", ctypes.c_ushort), ("lines", ctypes.c_void_p)]
filter = Filter(len(lines), ctypes.cast(buffer, ctypes.c_void_p))
assert libc.prctl(38, 1, 0, 0, 0) == 0                      # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.byref(filter), 0, 0) == 0   # PR_SET_SECCOMP
assert libc.ptrace(16, os.getppid(), 0, 0) == -1 and ctypes.get_errno() == 1
os.execv(sys.argv[1], sys.argv[1:])
"""


def run(folder, *wrapper, arguments=(), program=REDUCES, **variables):
    """Run a job; return exit status and output."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "holdfast", "run", "--recorder", "python", "--no-gate"]
    command += [*arguments, "program.py"]
    if wrapper[:1] == MOUNTS[:1] and wrapper[-2:-1] == ("-c",):
        wrapper = (*wrapper[:-1], f'{wrapper[-1]} && exec "$@"', "sh")
    done = subprocess.run(
        [*wrapper, *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout


def test_a_read_only_folder_without_shared_memory(tmp_path):
    folder, temporary = tmp_path / "here", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    read_only = (
        f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder} && cd {folder}"
        " && mount -t tmpfs -o size=4k none /dev/shm"
    )
    two = ("--nproc-per-node", "2")
    status, output = run(folder, *MOUNTS, read_only, arguments=two, TMPDIR=str(temporary))
    assert status == 0, output
    assert output.count("sum 2") == 2
    assert f"{folder} is not writable: the run folder is in {temporary}" in output
    assert "trace files are written to" in output
    assert len(list(temporary.glob("holdfast-runs-*/*/run.json"))) == 1


def test_a_pid_namespace(tmp_path):
    status, output = run(tmp_path, *nodes.UNSHARE, arguments=("--nproc-per-node", "2"))
    assert status == 0, output
    assert output.count("sum 2") == 2


def test_ptrace_refused(tmp_path):
    """The stacks then come from the ranks themselves."""
    status, output = run(
        tmp_path,
        *(sys.executable, "-c", REFUSE_PTRACE),
        arguments=("--nproc-per-node", "2", "--act-after", "2s", "--json-report", "report.json"),
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

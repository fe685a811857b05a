"""Run the programs of the corpus and store their output: ``python -m tests.golden.logs.make [NAME…]``.

A case of a framework requires an environment with its packages (``Expected.needs``) and torch;
``case.json`` records the versions. Some cases need root, for a mount, a host name or a memory cgroup.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from tests.golden.logs.case import Expected
from tests.golden.logs.expected import EXPECTED
from tests.golden.logs.launchers import LAUNCHERS

HERE = Path(__file__).parent
CASES = HERE / "cases"
LIMIT_S = 120.0


def main(names: list[str]) -> int:
    """Run and store the named cases, or all that can be run in this environment."""
    unknown = [name for name in names if name not in EXPECTED]
    if unknown:
        print(f"unknown case {unknown[0]!r}; choose from: {', '.join(EXPECTED)}", file=sys.stderr)
        return 2
    for name in names or EXPECTED:
        if why := unavailable_reason(EXPECTED[name]):
            print(f"{name}: not run: {why}", flush=True)
            continue
        store_case(name, EXPECTED[name], run(name, EXPECTED[name]))
    return 0


def unavailable_reason(expected: Expected) -> str:
    """Return why a case cannot be run here; '' if it can."""
    for package in expected.needs:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            return f"the package {package} is not installed"
    tool = LAUNCHERS[expected.launcher].tool
    if tool and not shutil.which(tool):
        return f"{tool} is not installed"
    if (
        tool in {"srun", "sbatch"}
        and subprocess.run(["scontrol", "ping"], capture_output=True, check=False).returncode
    ):
        return "no Slurm controller responds"
    return ""


def store_case(name: str, expected: Expected, logs: dict[str, str]) -> None:
    """Replace the stored files of a case."""
    folder = CASES / name
    shutil.rmtree(folder, ignore_errors=True)
    for file, text in logs.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(text.encode())  # preserves carriage returns
    versions = {package: metadata.version(package) for package in ("torch", *expected.needs)}
    case = {
        "id": name,
        "label": expected.cause,
        "also_acceptable": list(expected.accepted),
        "primary_rank": expected.rank,
        "made_with": versions,
    }
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")
    print(f"{name}: {sum(len(text.splitlines()) for text in logs.values())} lines", flush=True)


def run(name: str, expected: Expected) -> dict[str, str]:
    """Run a case; return its output by file name, stdout and stderr of a process together."""
    script = HERE / "programs" / f"{expected.program or name}.py"
    with tempfile.TemporaryDirectory(prefix="job-") as path:
        folder = Path(path)
        began = time.time()
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **expected.environment,
        }
        environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
        starts = LAUNCHERS[expected.launcher].starts(expected, script, folder)
        jobs = []
        for start in starts:
            with (folder / start.log).open("ab") as log:
                jobs.append(
                    subprocess.Popen(
                        start.command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        cwd=folder,
                        env=environment | start.environment,
                        start_new_session=True,
                    )
                )
        try:
            if expected.signal_after_s is not None:
                time.sleep(expected.signal_after_s)
                jobs[0].send_signal(expected.signal)
            for job in jobs:
                job.wait(timeout=max(1.0, LIMIT_S + began - time.time()))
        finally:
            for job in jobs:  # the process group: ranks survive their launcher after a timeout
                with suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
        logs = {
            str(log.relative_to(folder)): log.read_bytes().decode(errors="replace")
            for log in written_logs(folder)
        }
        if expected.kernel_log:
            logs["dmesg.txt"] = kernel_lines(began)
    return {file: anonymize(text, path) for file, text in logs.items()}


def written_logs(folder: Path) -> list[Path]:
    """Return the logs of a job: those of its processes and those in torchrun's log folder."""
    logs = [
        path
        for path in folder.rglob("*")
        if path.suffix in {".txt", ".log", ".out"} and path.stat().st_size
    ]
    return sorted(logs)


def kernel_lines(began: float) -> str:
    """Return the lines of the kernel log since ``began`` (seconds since the epoch)."""
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    lines = []
    for line in subprocess.run(
        ["dmesg"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        stamp = re.match(r"\[\s*([\d.]+)\]", line)
        if stamp and booted + float(stamp[1]) > began - 1:
            lines.append(line)
    return "\n".join(lines) + "\n"


def anonymize(text: str, path: str) -> str:
    """Replace the folders, kernel version and host name of this machine."""
    packages, standard = (sysconfig.get_path(kind) for kind in ("purelib", "stdlib"))
    torch = str(metadata.distribution("torch").locate_file(""))
    names = {
        str(HERE / "programs"): "/job",
        os.path.realpath(path): "/job",
        path: "/job",
        packages: "/python/site-packages",
        torch: "/python/site-packages",
        standard: "/python/lib/python3",
        str(Path(standard).parent.parent): "/python",
        os.path.realpath(sys.executable): "/python/bin/python",
        sys.executable: "/python/bin/python",
        sys.prefix: "/python",
    }
    for real, name in names.items():
        text = text.replace(real, name)
    text = text.replace(os.uname().release, "6.1.0")
    # Ray also lists processes that do not belong to the job.
    text = re.sub(r"(?m)^\d+\t[\d.]+\t(?!ray::|/python).*\n", "", text)
    text = re.sub(r"/process_api(/[0-9a-f]+)?", "/job.slice", text)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node-1", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

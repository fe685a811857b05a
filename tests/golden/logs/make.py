"""Runs the programs of the corpus and keeps what they print: ``python -m tests.golden.logs.make [NAME…]``.

A case of a framework is made by the Python of an environment that has it (``Expected.needs``) beside the torch of the
project; ``case.json`` tells the versions. Some cases need root: a mount or host name of their own, a memory cgroup.
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
    """Make the cases named, or all that can be made with the packages of this environment."""
    unknown = [name for name in names if name not in EXPECTED]
    if unknown:
        print(
            f"there is no program {unknown[0]!r}; there are: {', '.join(EXPECTED)}", file=sys.stderr
        )
        return 2
    for name in names or EXPECTED:
        if why := lacking(EXPECTED[name]):
            print(f"{name}: not made: {why}", flush=True)
            continue
        keep(name, EXPECTED[name], run(name, EXPECTED[name]))
    return 0


def lacking(expected: Expected) -> str:
    """Why a case cannot be made here, or nothing."""
    for package in expected.needs:
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            return f"the package {package} is not installed"
    tool = LAUNCHERS[expected.launcher].tool
    if tool and not shutil.which(tool):
        return f"there is no {tool} here"
    if (
        tool in {"srun", "sbatch"}
        and subprocess.run(["scontrol", "ping"], capture_output=True, check=False).returncode
    ):
        return "no controller of Slurm answers"
    return ""


def keep(name: str, expected: Expected, logs: dict[str, str]) -> None:
    """Write a case anew."""
    folder = CASES / name
    shutil.rmtree(folder, ignore_errors=True)
    for file, said in logs.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(said.encode())  # carriage returns are kept
    versions = {package: metadata.version(package) for package in ("torch", *expected.needs)}
    case = {
        "id": name,
        "label": expected.cause,
        "also_acceptable": list(expected.accepted),
        "primary_rank": expected.rank,
        "made_with": versions,
    }
    (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")
    print(f"{name}: {sum(len(said.splitlines()) for said in logs.values())} lines", flush=True)


def run(name: str, expected: Expected) -> dict[str, str]:
    """What one program prints, by the file of the case: both streams of a process together."""
    script = HERE / "programs" / f"{expected.program or name}.py"
    with tempfile.TemporaryDirectory(prefix="job-") as place:
        folder = Path(place)
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
            for job in jobs:  # the whole group: ranks outlive a launcher that was given up
                with suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)
        logs = {
            str(log.relative_to(folder)): log.read_bytes().decode(errors="replace")
            for log in kept(folder)
        }
        if expected.kernel_log:
            logs["dmesg.txt"] = kernel_lines(began)
    return {file: neutral(said, place) for file, said in logs.items()}


def kept(folder: Path) -> list[Path]:
    """The logs that a job left: those of its processes, and torchrun's folder with a file a rank and stream."""
    written = [
        path
        for path in folder.rglob("*")
        if path.suffix in {".txt", ".log", ".out"} and path.stat().st_size
    ]
    return sorted(written)


def kernel_lines(began: float) -> str:
    """What the kernel has said since ``began`` (seconds since the epoch) about a lack of memory."""
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    found = []
    for line in subprocess.run(
        ["dmesg"], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        stamp = re.match(r"\[\s*([\d.]+)\]", line)
        if stamp and booted + float(stamp[1]) > began - 1:
            found.append(line)
    return "\n".join(found) + "\n"


def neutral(text: str, place: str) -> str:
    """Without the folders and the host of this machine."""
    packages, standard = (sysconfig.get_path(kind) for kind in ("purelib", "stdlib"))
    torch = str(metadata.distribution("torch").locate_file(""))
    places = {
        str(HERE / "programs"): "/job",
        os.path.realpath(place): "/job",
        place: "/job",
        packages: "/python/site-packages",
        torch: "/python/site-packages",
        standard: "/python/lib/python3",
        str(Path(standard).parent.parent): "/python",
        os.path.realpath(sys.executable): "/python/bin/python",
        sys.executable: "/python/bin/python",
        sys.prefix: "/python",
    }
    for real, name in places.items():
        text = text.replace(real, name)
    text = text.replace(os.uname().release, "6.1.0")
    text = re.sub(
        r"(?m)^\d+\t[\d.]+\t(?!ray::|/python).*\n", "", text
    )  # Ray lists the processes of others as well
    text = re.sub(r"/process_api(/[0-9a-f]+)?", "/job.slice", text)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node-1", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

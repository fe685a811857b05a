"""Runs the programs of the corpus under torchrun and keeps what they print: ``python -m tests.corpus.make [NAME…]``.

A program that needs a /dev/shm of its own gets one in a mount namespace, for which root or user namespaces are needed.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import time
from contextlib import ExitStack
from pathlib import Path

from tests.corpus.expected import EXPECTED, Expected

HERE = Path(__file__).parent
CASES = HERE / "cases"
LIMIT_S = 60.0
PORT = 29511


def main(names: list[str]) -> int:
    """Make the cases named, or all."""
    unknown = [name for name in names if name not in EXPECTED]
    if unknown:
        print(f"there is no program {unknown[0]!r}; there are: {', '.join(EXPECTED)}", file=sys.stderr)
        return 2
    for name in names or EXPECTED:
        said = run(name, EXPECTED[name])
        folder = CASES / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "log.txt").write_text(said)
        case = {
            "id": name, "label": EXPECTED[name].cause, "also_acceptable": list(EXPECTED[name].accepted),
            "primary_rank": EXPECTED[name].rank,
        }  # fmt: skip
        (folder / "case.json").write_text(json.dumps(case, indent=1) + "\n")
        print(f"{name}: {len(said.splitlines())} lines", flush=True)
    return 0


def run(name: str, expected: Expected) -> str:
    """What one program prints, both streams together."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", *expected.options]
    command = [*torchrun, f"--nproc-per-node={expected.processes}", str(HERE / "programs" / f"{name}.py")]
    with ExitStack() as stack:
        if "--port" in expected.arguments:
            taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            address = ["--master-addr", "127.0.0.1", "--master-port", str(taken.getsockname()[1])]
            command = [*torchrun, "--node-rank", "0", "--nnodes", "1", *address, command[-1]]
        if expected.shm_bytes is not None:
            mount = f'mount -t tmpfs -o size={expected.shm_bytes} tmpfs /dev/shm && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", mount, "sh", *command]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **expected.environment}
        job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
        if expected.signal_after_s is not None:
            time.sleep(expected.signal_after_s)
            job.terminate()
        said, _ = job.communicate(timeout=LIMIT_S)
    return neutral(said.decode(errors="replace"))


def neutral(text: str) -> str:
    """Without the folders and the host of this machine."""
    packages, standard = (sysconfig.get_path(kind) for kind in ("purelib", "stdlib"))
    places = {str(HERE / "programs"): "/job", packages: "/python/site-packages", standard: "/python/lib/python3"}
    places |= {
        str(Path(standard).parent.parent): "/python",
        sys.executable: "/python/bin/python",
        sys.prefix: "/python",
    }
    for place, name in places.items():
        text = text.replace(place, name)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node-1", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

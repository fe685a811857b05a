"""From a fault to the first step of all ranks after the restart: holdfast next to torchrun and ft_launcher.

Two ranks; rank 1 is killed, hangs (sleeps), or is stopped in the middle of training. torchrun runs as shipped and with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (without which a restart may read the dead generation's addresses), with a process
group timeout of 10 s, without which it does not notice a hang for 30 minutes; holdfast runs at its default settings,
and the group has torch's own timeout. ft_launcher (nvidia-resiliency-ext 0.4.1) takes part where it is installed, with
the heartbeats that it needs to notice a hang sent by the script.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROUNDS = int(os.environ.get("HOLDFAST_BENCH_ROUNDS", "3"))
LIMIT_S = float(os.environ.get("HOLDFAST_BENCH_LIMIT_S", "120"))
HERE = Path(sys.executable).parent
STEPPER = Path(__file__).parent / "stepper.py"
FAULTS = ("sigkill", "hang", "sigstop")


@dataclass(frozen=True)
class Launcher:
    """One way to start the job; ``timeout_s`` is the process group's (0: torch's default of 30 minutes)."""

    name: str
    command: tuple[str, ...]
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)


def launchers() -> list[Launcher]:
    """Those that are installed here."""
    torchrun = (str(HERE / "torchrun"), "--standalone", "--nproc-per-node=2", "--max-restarts=3")
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    holdfast = (str(HERE / "holdfast"), "run", *torchrun[1:])
    found = [
        Launcher("holdfast run", holdfast, 0),
        Launcher("torchrun, own store, limit 10 s", torchrun, 10, own_store),
        Launcher("torchrun as shipped, limit 10 s", torchrun, 10),
    ]
    ft_launcher = shutil.which("ft_launcher", path=str(HERE)) or os.environ.get("HOLDFAST_BENCH_FT_LAUNCHER")
    if ft_launcher:
        heartbeats = ("--ft-initial-rank-heartbeat-timeout=60", "--ft-rank-heartbeat-timeout=5")
        found.append(Launcher("ft_launcher, heartbeats of 5 s", (ft_launcher, *torchrun[1:], *heartbeats), 10))
    return found


def once(launcher: Launcher, fault: str) -> float | None:
    """Seconds from the fault until both ranks finished a step of a later generation; None where that never came."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps"
        environment = os.environ | launcher.environment | {"OMP_NUM_THREADS": "1"}
        command = [*launcher.command, str(STEPPER), str(file), fault, str(launcher.timeout_s)]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=quiet, stderr=quiet)
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    began = next((line["time"] for line in lines if line["event"] == "fault"), None)
    first: dict[int, float] = {}
    for line in lines:
        if line["event"] == "step" and line["generation"] > 0:
            first.setdefault(line["rank"], line["time"])
    return max(first.values()) - began if began and len(first) == 2 else None


def main() -> None:
    """Print medians, and how many of the runs recovered."""
    found = launchers()
    taken: dict[tuple[str, str], list[float | None]] = {}
    for _ in range(ROUNDS):
        for fault in FAULTS:
            for launcher in found:
                taken.setdefault((launcher.name, fault), []).append(once(launcher, fault))
    print(f"{'':34}" + "".join(f"{fault:>20}" for fault in FAULTS))
    for launcher in found:
        cells = []
        for fault in FAULTS:
            values = taken[launcher.name, fault]
            whole = [value for value in values if value is not None]
            middle = f"{statistics.median(whole):.1f} s" if whole else f"not in {LIMIT_S:.0f} s"
            cells.append(f"{middle} ({len(whole)}/{len(values)})")
        print(f"{launcher.name:34}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()

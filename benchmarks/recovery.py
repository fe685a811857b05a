"""From a fault in the middle of training to the first step of all ranks after it, next to what others offer.

Rank 1 is killed, hangs (sleeps), or is stopped, 15 s after the first step, as happens in training (spare processes are
ready then). holdfast runs at its defaults, and once more with --spares off; the group has torch's own timeout. torchrun
runs as shipped and with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (without which a restart may read the dead generation's
addresses), with a process group timeout of 10 s, without which it does not notice a hang for 30 minutes.
HOLDFAST_BENCH_PEERS names a folder with the commands of other environments (ft_launcher, dlrover-run); those that are
there take part, ft_launcher with the heartbeats that it needs to notice a hang, sent by the script.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROUNDS = int(os.environ.get("HOLDFAST_BENCH_ROUNDS", "3"))
LIMIT_S = float(os.environ.get("HOLDFAST_BENCH_LIMIT_S", "120"))
AFTER_S = 15.0
RANKS = tuple(int(ranks) for ranks in os.environ.get("HOLDFAST_BENCH_RANKS", "2,4").split(","))
HERE = Path(sys.executable).parent
STEPPER = Path(__file__).parent / "stepper.py"
FAULTS = tuple(os.environ.get("HOLDFAST_BENCH_FAULTS", "sigkill,hang,sigstop").split(","))


@dataclass(frozen=True)
class Launcher:
    """One way to start the job; ``timeout_s`` is the process group's (0: torch's default of 30 minutes)."""

    name: str
    command: tuple[str, ...]
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)


def launchers(ranks: int) -> list[Launcher]:
    """Those that can be started here."""
    common = ("--standalone", f"--nproc-per-node={ranks}", "--max-restarts=3")
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    found = [
        Launcher("holdfast run", (str(HERE / "holdfast"), "run", *common), 0),
        Launcher("holdfast run --spares off", (str(HERE / "holdfast"), "run", "--spares", "off", *common), 0),
        Launcher("torchrun, own store, limit 10 s", (str(HERE / "torchrun"), *common), 10, own_store),
        Launcher("torchrun as shipped, limit 10 s", (str(HERE / "torchrun"), *common), 10),
    ]
    peers = Path(os.environ.get("HOLDFAST_BENCH_PEERS", "/nonexistent"))
    more = {
        "ft_launcher": ("--ft-initial-rank-heartbeat-timeout=60", "--ft-rank-heartbeat-timeout=5"),
        "dlrover-run": (),
    }
    found += [
        Launcher(name, (str(peers / name), *common, *options), 10)
        for name, options in more.items() if (peers / name).exists()
    ]  # fmt: skip
    return found


def once(launcher: Launcher, fault: str, ranks: int) -> float | None:
    """Seconds from the fault until all ranks finished a step of a later generation; None where that never came."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps"
        environment = os.environ | launcher.environment | {"OMP_NUM_THREADS": "1"}
        command = [*launcher.command, str(STEPPER), str(file), fault, str(launcher.timeout_s), str(AFTER_S)]
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
    return max(first.values()) - began if began and len(first) == ranks else None


def main() -> None:
    """Print medians, how many of the runs recovered, and the ratio to the best of the others."""
    for ranks in RANKS:
        found = launchers(ranks)
        taken: dict[tuple[str, str], list[float | None]] = {}
        for _ in range(ROUNDS):
            for fault in FAULTS:
                for launcher in found:
                    values = taken.setdefault((launcher.name, fault), [])
                    values.append(once(launcher, fault, ranks))
                    said = f"  {ranks} ranks, {fault}, {launcher.name}: {_cell(values[-1:])}"
                    print(said, file=sys.stderr, flush=True)
        print(f"\n{ranks} ranks{'':26}" + "".join(f"{fault:>20}" for fault in FAULTS))
        for launcher in found:
            print(f"{launcher.name:34}" + "".join(f"{_cell(taken[launcher.name, fault]):>20}" for fault in FAULTS))
        print(f"{'ratio to the best of the others':34}" + "".join(f"{_ratio(taken, fault):>20}" for fault in FAULTS))


def _middle(values: list[float | None]) -> float | None:
    whole = [value for value in values if value is not None]
    return statistics.median(whole) if whole else None


def _cell(values: list[float | None]) -> str:
    middle = _middle(values)
    shown = f"not in {LIMIT_S:.0f} s" if middle is None else f"{middle:.2f} s"
    return f"{shown} ({sum(value is not None for value in values)}/{len(values)})"


def _ratio(taken: dict[tuple[str, str], list[float | None]], fault: str) -> str:
    ours = _middle(taken["holdfast run", fault])
    theirs = [
        middle for (name, other), values in taken.items()
        if other == fault and not name.startswith("holdfast") and (middle := _middle(values)) is not None
    ]  # fmt: skip
    return f"{ours / min(theirs):.2f}" if ours is not None and theirs else "-"


if __name__ == "__main__":
    sys.exit(main())

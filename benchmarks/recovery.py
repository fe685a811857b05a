"""From a fault in the middle of training to the first step of all ranks after it, next to what others offer.

Rank 1 is killed, hangs (sleeps), or is stopped, AFTER_S after the first step, as happens in training (spare processes
are ready then). holdfast runs at its defaults, with a script that lets survivors go on in place, and once more with
--spares off; the group has torch's own timeout. torchrun runs as shipped and with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (without which a restart may read the dead generation's addresses), with a process
group timeout of 10 s, without which it does not notice a hang for 30 minutes. In a hang and a SIGSTOP, where its own
limit is what counts, each of the others runs with the first number of ranks alone.

HOLDFAST_BENCH_PEERS names a folder with the commands of other environments (ft_launcher, dlrover-run); those that are
there take part, ft_launcher with the heartbeats that it needs to notice a hang, sent by the script. They need no torch
of their own (dlrover 0.6.1 needs one word more for torch 2.13: its only SubprocessHandler gets `numa_options`, None):

    python3 -m venv peers
    echo SITE_PACKAGES_OF_THE_TORCH_THAT_IS_MEASURED > peers/lib/python3.11/site-packages/torch.pth
    peers/bin/pip install --no-deps nvidia-resiliency-ext==0.4.1 defusedxml dlrover==0.6.1 grpcio protobuf
    peers/bin/pip install kubernetes deprecated  # dlrover imports them
    sed -i 's/SubprocessHandler(cmd, args, {}, "", "", 0)/SubprocessHandler(cmd, args, {}, "", "", 0, None)/' \
        peers/lib/python3.11/site-packages/dlrover/trainer/torch/elastic_run.py

Every run is a line on standard error at once, and one of JSON in the file that HOLDFAST_BENCH_RESULTS names. What
stands there already counts as measured, so that rounds can be added, and a call that was cut off goes on. The default
takes some nine minutes; HOLDFAST_BENCH_FAULTS, _RANKS and _ROUNDS choose less or more.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ROUNDS = int(os.environ.get("HOLDFAST_BENCH_ROUNDS", "1"))
LIMIT_S = float(os.environ.get("HOLDFAST_BENCH_LIMIT_S", "70"))
AFTER_S = float(os.environ.get("HOLDFAST_BENCH_AFTER_S", "8"))
RANKS = tuple(int(ranks) for ranks in os.environ.get("HOLDFAST_BENCH_RANKS", "2,4").split(","))
HERE = Path(sys.executable).parent
STEPPER = Path(__file__).parent / "stepper.py"
FAULTS = tuple(os.environ.get("HOLDFAST_BENCH_FAULTS", "sigkill,hang,sigstop").split(","))
PEERS = Path(os.environ.get("HOLDFAST_BENCH_PEERS", "/nonexistent"))
RESULTS = os.environ.get("HOLDFAST_BENCH_RESULTS", "")


@dataclass(frozen=True)
class Launcher:
    """One way to start the job.

    ``timeout_s`` is the process group's (0: torch's default of 30 minutes). ``deaths`` alone: it does not differ from
    another way in a hang. ``aside``: it says how much a part matters, and one number of ranks is enough for that.
    """

    name: str
    command: tuple[str, ...]
    timeout_s: float = 10
    environment: dict[str, str] = field(default_factory=dict)
    in_place: bool = False
    deaths: bool = False
    aside: bool = False

    @property
    def ours(self) -> bool:
        """Whether it is holdfast."""
        return self.name.startswith("holdfast")


@dataclass(frozen=True)
class Run:
    """One run: ``seconds`` from the fault until all ranks made a step of a later generation, None where none did."""

    launcher: str
    fault: str
    ranks: int
    seconds: float | None


def launchers() -> list[Launcher]:
    """Those that can be started here; what all have in common comes later."""
    holdfast, torchrun = (str(HERE / "holdfast"), "run"), (str(HERE / "torchrun"),)
    heartbeats = ("--ft-initial-rank-heartbeat-timeout=60", "--ft-rank-heartbeat-timeout=5")
    others = [
        Launcher("ft_launcher", (str(PEERS / "ft_launcher"), *heartbeats)),
        Launcher("dlrover-run", (str(PEERS / "dlrover-run"),)),
    ]
    return [
        Launcher("holdfast run", holdfast, 0),
        Launcher("holdfast run, in place", holdfast, 0, in_place=True, deaths=True),
        Launcher("holdfast run --spares off", (*holdfast, "--spares", "off"), 0, deaths=True, aside=True),
        Launcher("torchrun, own store, limit 10 s", torchrun, environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
        Launcher("torchrun as shipped, limit 10 s", torchrun, deaths=True, aside=True),
        *(each for each in others if Path(each.command[0]).exists()),
    ]


def wanted(fault: str, ranks: int) -> list[Launcher]:
    """The launchers whose figure says something about this fault with so many ranks."""
    first = ranks == RANKS[0]
    if fault == "sigkill":
        return [each for each in launchers() if first or not each.aside]
    return [each for each in launchers() if not each.deaths and (each.ours or first)]


def once(launcher: Launcher, fault: str, ranks: int) -> float | None:
    """Seconds from the fault until all ranks finished a step of a later generation; None where that never came."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps"
        environment = os.environ | launcher.environment | {"OMP_NUM_THREADS": "1"}
        script = [str(STEPPER), str(file), fault, str(launcher.timeout_s), str(AFTER_S), str(int(launcher.in_place))]
        command = [*launcher.command, "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=3", *script]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=quiet, stderr=quiet)
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            end(process)
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    began = next((line["time"] for line in lines if line["event"] == "fault"), None)
    first: dict[int, float] = {}
    for line in lines:
        if line["event"] == "step" and line["generation"] > 0:
            first.setdefault(line["rank"], line["time"])
    return max(first.values()) - began if began and len(first) == ranks else None


def end(process: subprocess.Popen[bytes]) -> None:
    """End a launcher that did not come to an end, and all that it started."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for each in started:
        with suppress(psutil.Error):
            each.kill()


def kept() -> list[Run]:
    """The runs that the file of results holds."""
    if not RESULTS or not Path(RESULTS).exists():
        return []
    return [Run(**json.loads(line)) for line in Path(RESULTS).read_text().splitlines()]


def measure() -> Iterator[Run]:
    """What is missing of the rounds, one number of ranks after the other."""
    before = kept()
    for number in range(ROUNDS):
        for ranks in RANKS:
            for fault in FAULTS:
                for launcher in wanted(fault, ranks):
                    done = [
                        run for run in before if (run.launcher, run.fault, run.ranks) == (launcher.name, fault, ranks)
                    ]
                    if len(done) <= number:
                        yield Run(launcher.name, fault, ranks, once(launcher, fault, ranks))


def main() -> None:
    """Print medians, how many of the runs recovered, and the ratio to the best of the others."""
    taken = kept()
    for run in measure():
        taken.append(run)
        print(f"  {run.ranks} ranks, {run.fault}, {run.launcher}: {_cell([run])}", file=sys.stderr, flush=True)
        if RESULTS:
            with Path(RESULTS).open("a") as file:
                file.write(json.dumps(vars(run)) + "\n")
    for ranks in RANKS:
        print(f"\n{ranks} ranks{'':26}" + "".join(f"{fault:>20}" for fault in FAULTS))
        chosen = [run for run in taken if run.ranks == ranks]
        for name in dict.fromkeys(run.launcher for run in chosen):
            rows = [[run for run in chosen if (run.launcher, run.fault) == (name, fault)] for fault in FAULTS]
            print(f"{name:34}" + "".join(f"{_cell(row):>20}" for row in rows))
        print(f"{'ratio to the best of the others':34}" + "".join(f"{_ratio(chosen, fault):>20}" for fault in FAULTS))


def _middle(runs: list[Run]) -> float | None:
    whole = [run.seconds for run in runs if run.seconds is not None]
    return statistics.median(whole) if whole else None


def _cell(runs: list[Run]) -> str:
    if not runs:
        return "-"
    middle = _middle(runs)
    shown = f"not in {LIMIT_S:.0f} s" if middle is None else f"{middle:.2f} s"
    return f"{shown} ({sum(run.seconds is not None for run in runs)}/{len(runs)})"


def _ratio(runs: list[Run], fault: str) -> str:
    of_fault = [run for run in runs if run.fault == fault]
    ours = _middle([run for run in of_fault if run.launcher == "holdfast run"])
    others = {run.launcher for run in of_fault if not run.launcher.startswith("holdfast")}
    theirs = [
        middle for name in others if (middle := _middle([run for run in of_fault if run.launcher == name])) is not None
    ]
    return f"{ours / min(theirs):.2f}" if ours is not None and theirs else "-"


if __name__ == "__main__":
    sys.exit(main())

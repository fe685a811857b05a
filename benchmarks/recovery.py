"""Time from a fault during training to the next step of all ranks, next to other launchers.

Rank 1 is killed, hangs (sleeps), or is stopped, AFTER_S after the first step, when standby workers
are ready. holdfast runs with --act-after 5s (by default a rank that sleeps is suspected at that
time and acted on after 60 s), with recovery in place, and with --spares off; all other settings and
the process-group timeout are the defaults. torchrun runs as shipped and with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 (without it a restart may read addresses of the dead
generation), with a process-group timeout of 10 s; by default it detects no hang for 30 minutes.
After a hang and a SIGSTOP the peers run with the first number of ranks only, because their timeout
determines the result.

HOLDFAST_BENCH_PEERS is a folder with the commands of other environments (ft_launcher, dlrover-run);
those found are measured, ft_launcher with the heartbeats that it requires, sent by the script. They
use this environment's torch. dlrover 0.6.1 lacks an argument that torch 2.13 requires (the
`numa_options` of SubprocessHandler), which the last command adds:

    python3 -m venv peers
    echo SITE_PACKAGES_OF_THE_TORCH_THAT_IS_MEASURED > peers/lib/python3.11/site-packages/torch.pth
    peers/bin/pip install --no-deps nvidia-resiliency-ext==0.4.1 defusedxml dlrover==0.6.1
    peers/bin/pip install --no-deps grpcio protobuf
    peers/bin/pip install kubernetes deprecated  # dlrover imports them
    sed -i '/SubprocessHandler(cmd/s/0)/0, None)/' \
        peers/lib/python3.11/site-packages/dlrover/trainer/torch/elastic_run.py

Each run prints a line to standard error, and appends one of JSON to the file
HOLDFAST_BENCH_RESULTS. Runs in that file are not repeated, so rounds can be added and an
interrupted benchmark resumes. The default takes about nine minutes; HOLDFAST_BENCH_FAULTS, _RANKS
and _ROUNDS select fewer or more.
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

    ``timeout_s`` is the process group's (0: torch's default of 30 minutes). ``sigkill_only``: in a
    hang it does not differ from another launcher. ``ablation``: measured with the first number of
    ranks only.
    """

    name: str
    command: tuple[str, ...]
    timeout_s: float = 10
    environment: dict[str, str] = field(default_factory=dict)
    in_place: bool = False
    sigkill_only: bool = False
    ablation: bool = False

    @property
    def is_holdfast(self) -> bool:
        """Return whether it is holdfast."""
        return self.name.startswith("holdfast")


@dataclass(frozen=True)
class Run:
    """Seconds from the fault until all ranks made a step of a later generation, or None."""

    launcher: str
    fault: str
    ranks: int
    seconds: float | None


def launchers() -> list[Launcher]:
    """Return the launchers that are available here, without common arguments."""
    holdfast, torchrun = (
        (str(HERE / "holdfast"), "run", "--act-after=5s"),
        (str(HERE / "torchrun"),),
    )
    heartbeats = ("--ft-initial-rank-heartbeat-timeout=60", "--ft-rank-heartbeat-timeout=5")
    others = [
        Launcher("ft_launcher", (str(PEERS / "ft_launcher"), *heartbeats)),
        Launcher("dlrover-run", (str(PEERS / "dlrover-run"),)),
    ]
    return [
        Launcher("holdfast run", holdfast, 0),
        Launcher("holdfast run, in place", holdfast, 0, in_place=True, sigkill_only=True),
        Launcher(
            "holdfast run --spares off",
            (*holdfast, "--spares", "off"),
            0,
            sigkill_only=True,
            ablation=True,
        ),
        Launcher(
            "torchrun, own store, limit 10 s",
            torchrun,
            environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        ),
        Launcher("torchrun as shipped, limit 10 s", torchrun, sigkill_only=True, ablation=True),
        *(each for each in others if Path(each.command[0]).exists()),
    ]


def select_launchers(fault: str, ranks: int) -> list[Launcher]:
    """Return the launchers to measure for this fault and number of ranks."""
    first = ranks == RANKS[0]
    if fault == "sigkill":
        return [each for each in launchers() if first or not each.ablation]
    return [each for each in launchers() if not each.sigkill_only and (each.is_holdfast or first)]


def measure_run(launcher: Launcher, fault: str, ranks: int) -> float | None:
    """Run the job; return the seconds as in :class:`Run`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "steps"
        environment = os.environ | launcher.environment | {"OMP_NUM_THREADS": "1"}
        script = [
            str(STEPPER),
            str(file),
            fault,
            str(launcher.timeout_s),
            str(AFTER_S),
            str(int(launcher.in_place)),
        ]
        command = [
            *launcher.command,
            "--standalone",
            f"--nproc-per-node={ranks}",
            "--max-restarts=3",
            *script,
        ]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=quiet, stderr=quiet)
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            terminate(process)
        lines = (
            [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        )
    began = next((line["time"] for line in lines if line["event"] == "fault"), None)
    first: dict[int, float] = {}
    for line in lines:
        if line["event"] == "step" and line["generation"] > 0:
            first.setdefault(line["rank"], line["time"])
    return max(first.values()) - began if began and len(first) == ranks else None


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Terminate a launcher that did not exit, and all its child processes."""
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


def read_results() -> list[Run]:
    """Return the runs in the results file."""
    if not RESULTS or not Path(RESULTS).exists():
        return []
    return [Run(**json.loads(line)) for line in Path(RESULTS).read_text().splitlines()]


def measure() -> Iterator[Run]:
    """Make and yield the runs that are missing in the results file."""
    before = read_results()
    for number in range(ROUNDS):
        for ranks in RANKS:
            for fault in FAULTS:
                for launcher in select_launchers(fault, ranks):
                    done = [
                        run
                        for run in before
                        if (run.launcher, run.fault, run.ranks) == (launcher.name, fault, ranks)
                    ]
                    if len(done) <= number:
                        yield Run(launcher.name, fault, ranks, measure_run(launcher, fault, ranks))


def main() -> None:
    """Print medians, how many runs recovered, and the ratio to the best other launcher."""
    taken = read_results()
    for run in measure():
        taken.append(run)
        print(
            f"  {run.ranks} ranks, {run.fault}, {run.launcher}: {_cell([run])}",
            file=sys.stderr,
            flush=True,
        )
        if RESULTS:
            with Path(RESULTS).open("a") as file:
                file.write(json.dumps(vars(run)) + "\n")
    for ranks in RANKS:
        print(f"\n{ranks} ranks{'':26}" + "".join(f"{fault:>20}" for fault in FAULTS))
        chosen = [run for run in taken if run.ranks == ranks]
        for name in dict.fromkeys(run.launcher for run in chosen):
            rows = [
                [run for run in chosen if (run.launcher, run.fault) == (name, fault)]
                for fault in FAULTS
            ]
            print(f"{name:34}" + "".join(f"{_cell(row):>20}" for row in rows))
        print(
            f"{'ratio to the best of the others':34}"
            + "".join(f"{_ratio(chosen, fault):>20}" for fault in FAULTS)
        )


def _median_s(runs: list[Run]) -> float | None:
    recovered = [run.seconds for run in runs if run.seconds is not None]
    return statistics.median(recovered) if recovered else None


def _cell(runs: list[Run]) -> str:
    if not runs:
        return "-"
    median_s = _median_s(runs)
    shown = f"not in {LIMIT_S:.0f} s" if median_s is None else f"{median_s:.2f} s"
    return f"{shown} ({sum(run.seconds is not None for run in runs)}/{len(runs)})"


def _ratio(runs: list[Run], fault: str) -> str:
    of_fault = [run for run in runs if run.fault == fault]
    ours = _median_s([run for run in of_fault if run.launcher == "holdfast run"])
    others = {run.launcher for run in of_fault if not run.launcher.startswith("holdfast")}
    theirs = [
        median_s
        for name in others
        if (median_s := _median_s([run for run in of_fault if run.launcher == name])) is not None
    ]
    return f"{ours / min(theirs):.2f}" if ours is not None and theirs else "-"


if __name__ == "__main__":
    sys.exit(main())

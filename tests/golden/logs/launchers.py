"""Launchers of the corpus: each returns the processes to start for a case."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.golden.logs.case import Expected

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


PORT = _free_port()
MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(PORT)}


@dataclass(frozen=True)
class Start:
    """A process of a job. ``log``: the file of the case for its output."""

    command: list[str]
    log: str = "log.txt"
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launcher:
    """``starts`` returns the processes from case, script and folder; ``tool`` is a required program."""

    starts: Callable[[Expected, Path, Path], list[Start]]
    tool: str = ""


def torchrun(case: Expected, script: Path, _: Path) -> list[Start]:
    """Start one agent; a separate /dev/shm requires a mount namespace."""
    command = [
        *TORCHRUN,
        *case.options,
        f"--nproc-per-node={case.processes}",
        str(script),
        *case.arguments,
    ]
    if case.shm_bytes is not None:
        mount = f'mount -t tmpfs -o size={case.shm_bytes} tmpfs /dev/shm && exec "$@"'
        command = ["unshare", "--mount", "sh", "-c", mount, "sh", *command]
    return [Start(command)]


def torchrun_on_occupied_port(case: Expected, script: Path, _: Path) -> list[Start]:
    """Start the agent while another process occupies the port of the rendezvous."""
    occupy = (
        f"import socket, time; held = socket.create_server(('127.0.0.1', {PORT})); time.sleep(15)"
    )
    address = ["--master-addr=127.0.0.1", f"--master-port={PORT}", "--node-rank=0", "--nnodes=1"]
    agent = [*TORCHRUN, *address, f"--nproc-per-node={case.processes}", str(script)]
    return [Start([sys.executable, "-c", occupy]), Start(agent)]


def torchrun_with_folders(case: Expected, script: Path, folder: Path) -> list[Start]:
    """Use torchrun's log folder, with one file per rank and stream."""
    logs = [f"--log-dir={folder}/logs", "--redirects=3"]
    command = [
        *TORCHRUN,
        *case.options,
        *logs,
        f"--nproc-per-node={case.processes}",
        str(script),
        *case.arguments,
    ]
    return [Start(command)]


def nodes(case: Expected, script: Path, _: Path) -> list[Start]:
    """Start one agent per node, each with its own host name; ``processes`` is per node."""
    return [
        Start(_on_host(node, _agent(case, node, script)), log=f"node-{node}.txt")
        for node in range(2)
    ]


def first_node_alone(case: Expected, script: Path, _: Path) -> list[Start]:
    """Start only the first of two nodes."""
    return [Start(_on_host(0, _agent(case, 0, script)))]


def _agent(case: Expected, node: int, script: Path) -> list[str]:
    where = [
        f"--node-rank={node}",
        "--nnodes=2",
        "--master-addr=127.0.0.1",
        f"--master-port={PORT}",
    ]
    return [
        *TORCHRUN,
        *where,
        *case.options,
        f"--nproc-per-node={case.processes}",
        str(script),
        *case.arguments,
    ]


def _on_host(node: int, command: list[str]) -> list[str]:
    return [
        "unshare",
        "--uts",
        "sh",
        "-c",
        f'hostname gpu-node-{node} && exec "$@"',
        "sh",
        *command,
    ]


def ranks(case: Expected, script: Path, _: Path) -> list[Start]:
    """Start the ranks without an agent, as a scheduler's script does, with output to one file."""
    world = MASTER | {"WORLD_SIZE": str(case.processes)}
    return [
        Start(
            [sys.executable, str(script), *case.arguments], environment=world | {"RANK": str(rank)}
        )
        for rank in range(case.processes)
    ]


def python(case: Expected, script: Path, _: Path) -> list[Start]:
    """Start only the script, which starts its own processes."""
    return [Start([sys.executable, str(script), *case.arguments], environment=MASTER)]


def accelerate(case: Expected, script: Path, _: Path) -> list[Start]:
    """Use ``accelerate launch``; it starts several processes only with ``--multi_gpu``."""
    launch = [
        str(Path(sys.executable).parent / "accelerate"),
        "launch",
        "--multi_gpu",
        "--mixed_precision=no",
    ]
    sizes = [
        f"--num_processes={case.processes}",
        "--num_machines=1",
        "--dynamo_backend=no",
        f"--main_process_port={PORT}",
    ]
    return [Start([*launch, *sizes, *case.options, str(script), *case.arguments])]


def deepspeed(case: Expected, script: Path, _: Path) -> list[Start]:
    """Use the ``deepspeed`` launcher with the accelerator "cpu"."""
    launch = [
        sys.executable,
        str(Path(sys.executable).parent / "deepspeed"),
        f"--master_port={PORT}",
    ]
    sizes = [f"--num_accelerators={case.processes}"]
    return [
        Start(
            [*launch, *sizes, *case.options, str(script), *case.arguments],
            environment={"DS_ACCELERATOR": "cpu"},
        )
    ]


def srun(case: Expected, script: Path, _: Path) -> list[Start]:
    """Use ``srun -l``, which prefixes each line with its task number."""
    ranked = [
        "sh",
        "-c",
        'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec "$@"',
        "sh",
        sys.executable,
        str(script),
    ]
    return [
        Start(
            ["srun", "-l", f"-n{case.processes}", *case.options, *ranked, *case.arguments],
            environment=MASTER,
        )
    ]


def sbatch(case: Expected, script: Path, folder: Path) -> list[Start]:
    """Submit a batch script that runs torchrun; the log is the output file of the job."""
    inner = " ".join(
        [
            *TORCHRUN,
            "--standalone",
            f"--nproc-per-node={case.processes}",
            str(script),
            *case.arguments,
        ]
    )
    (folder / "job.sh").write_text(f"#!/bin/bash\n{inner}\n")
    command = [
        "sbatch",
        "--wait",
        "--output=slurm-%j.out",
        f"-n{case.processes}",
        *case.options,
        "job.sh",
    ]
    return [Start(command, log="sbatch.stdout")]


LAUNCHERS = {
    "torchrun": Launcher(torchrun),
    "torchrun-on-a-taken-port": Launcher(torchrun_on_occupied_port),
    "torchrun-with-folders": Launcher(torchrun_with_folders),
    "nodes": Launcher(nodes, tool="unshare"),
    "first-node-alone": Launcher(first_node_alone, tool="unshare"),
    "ranks": Launcher(ranks),
    "python": Launcher(python),
    "accelerate": Launcher(accelerate),
    "deepspeed": Launcher(deepspeed),
    "srun": Launcher(srun, tool="srun"),
    "sbatch": Launcher(sbatch, tool="sbatch"),
}

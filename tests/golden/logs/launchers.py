"""How the programs of the corpus are started: each way to start a job, as a list of processes."""

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
    """One process that is started for a job. ``log``: the file of the case that gets its output."""

    command: list[str]
    log: str = "log.txt"
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Launcher:
    """``starts``: the processes of a case, from what is expected, its script and a folder. ``tool``: what it needs."""

    starts: Callable[[Expected, Path, Path], list[Start]]
    tool: str = ""


def torchrun(case: Expected, script: Path, _: Path) -> list[Start]:
    """One agent. A /dev/shm of its own lives in a mount namespace."""
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


def torchrun_on_a_taken_port(case: Expected, script: Path, _: Path) -> list[Start]:
    """The port of the rendezvous belongs to somebody else for as long as the agent needs."""
    hold = (
        f"import socket, time; held = socket.create_server(('127.0.0.1', {PORT})); time.sleep(15)"
    )
    address = ["--master-addr=127.0.0.1", f"--master-port={PORT}", "--node-rank=0", "--nnodes=1"]
    agent = [*TORCHRUN, *address, f"--nproc-per-node={case.processes}", str(script)]
    return [Start([sys.executable, "-c", hold]), Start(agent)]


def torchrun_with_folders(case: Expected, script: Path, folder: Path) -> list[Start]:
    """A file a rank and stream in torchrun's folder of logs."""
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
    """An agent a node, each with the host name of its own; ``processes`` are those of one node."""
    return [
        Start(_on_host(node, _agent(case, node, script)), log=f"node-{node}.txt")
        for node in range(2)
    ]


def first_node_alone(case: Expected, script: Path, _: Path) -> list[Start]:
    """The second node never comes."""
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
    """The ranks alone, as a scheduler's script starts them: no agent, all into one file."""
    world = MASTER | {"WORLD_SIZE": str(case.processes)}
    return [
        Start(
            [sys.executable, str(script), *case.arguments], environment=world | {"RANK": str(rank)}
        )
        for rank in range(case.processes)
    ]


def python(case: Expected, script: Path, _: Path) -> list[Start]:
    """The script starts its own processes."""
    return [Start([sys.executable, str(script), *case.arguments], environment=MASTER)]


def accelerate(case: Expected, script: Path, _: Path) -> list[Start]:
    """``accelerate launch``, which starts several processes only when it is told of several GPUs."""
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
    """The ``deepspeed`` launcher, with the accelerator "cpu"."""
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
    """``srun -l``: each line with the number of its task."""
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
    """A batch script that runs torchrun, and the output file of the job."""
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
    return [Start(command, log="sbatch.said")]


LAUNCHERS = {
    "torchrun": Launcher(torchrun),
    "torchrun-on-a-taken-port": Launcher(torchrun_on_a_taken_port),
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

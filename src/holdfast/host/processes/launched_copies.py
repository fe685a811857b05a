"""Identifies this copy among copies of the command that a launcher started on several nodes.

``srun holdfast attach`` inside an allocation, and ``torchrun --nnodes … -m holdfast attach``, set
variables from which the copies can find each other. Variables alone are not sufficient: a shell in
the allocation, and a container of the job, have them too. Therefore the launcher must be an
ancestor of this process.

Sources: srun(1), "Output environment variables"; torch/distributed/elastic/agent
(LocalElasticAgent).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import msgspec

from holdfast.host.processes.training_processes import ProcessTable, TrainingProcess, launcher_name

#: Slurm uses these step numbers for the batch script, `salloc` shells and similar, which are not
#: `srun`.
_FIRST_RESERVED_STEP = 0xFFFFFF00
MAX_NAMES = 1 << 15
_MAX_DIGITS = 40
_RANGE = re.compile(r"([^\[]*)\[([\d,-]+)\](.*)", re.DOTALL)


class LaunchedCopy(msgspec.Struct, frozen=True, kw_only=True):
    """One copy. ``node`` counts from 0.

    ``names`` are those of the nodes, if the launcher provides them. ``address``: host of node 0;
    ``word``: identifies the copies of one launch; ``allocation``: its Slurm job. ``speaks`` is
    False for additional copies on a node, which have nothing to do.
    """

    launcher: str
    node: int
    nodes: int
    address: str
    word: str
    speaks: bool = True
    names: tuple[str, ...] = ()
    allocation: str = ""

    def name(self, node: int) -> str:
        """Return a node's display name."""
        return (
            f"node {self.names[node]}" if node < len(self.names) else f"node {node} of {self.nodes}"
        )


def this_copy(table: ProcessTable) -> LaunchedCopy | None:
    """Return which copy this process is; None if it was started manually."""
    process = table.process(os.getpid())
    launchers = {launcher_name(ancestor.words) for ancestor in table.ancestors(process.pid)}
    copy = _torchrun_copy(process) if "torchrun" in launchers else None
    return copy or (_srun_copy(process) if "srun" in launchers else None)


def _srun_copy(process: TrainingProcess) -> LaunchedCopy | None:
    numbers = [
        _number(process, name) for name in ("SLURM_STEP_ID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES")
    ]
    step, node, nodes = numbers
    if (
        step is None
        or node is None
        or nodes is None
        or step >= _FIRST_RESERVED_STEP
        or node >= nodes
    ):
        return None
    names = tuple(host_names(process.variable("SLURM_STEP_NODELIST")))
    job = process.variable("SLURM_JOB_ID")
    return LaunchedCopy(
        launcher="srun",
        node=node,
        nodes=nodes,
        address=names[0] if names else "",
        word=f"srun {job}.{step} {process.variable('SLURM_STEP_LAUNCHER_PORT')}",
        speaks=_number(process, "SLURM_LOCALID") in (None, 0),
        names=names,
        allocation=job,
    )


def _torchrun_copy(process: TrainingProcess) -> LaunchedCopy | None:
    node, nodes = _number(process, "GROUP_RANK"), _number(process, "GROUP_WORLD_SIZE")
    if (
        node is None
        or nodes is None
        or node >= nodes
        or not process.variable("TORCHELASTIC_RUN_ID")
    ):
        return None
    parts = (
        process.variable(name)
        for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    )
    return LaunchedCopy(
        launcher="torchrun",
        node=node,
        nodes=nodes,
        address=process.variable("MASTER_ADDR"),
        word=" ".join(("torchrun", *parts)),
        speaks=_number(process, "LOCAL_RANK") in (None, 0),
    )


def host_names(nodelist: str) -> Iterator[str]:
    """Expand Slurm's node list in order: ``rack[1-2]n[08-10],login`` are seven hosts.

    At most MAX_NAMES.
    """
    count = 0
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", nodelist):
        for name in _expand(part):
            if (count := count + 1) > MAX_NAMES:
                return
            yield name


def _expand(pattern: str) -> Iterator[str]:
    match = _RANGE.fullmatch(pattern)
    if match is None:
        yield pattern
        return
    before, ranges, after = match.groups()
    for span in ranges.split(","):
        first, _, last = span.partition("-")
        if (
            not first.isdigit()
            or not (last or first).isdigit()
            or len(first) + len(last) > _MAX_DIGITS
        ):
            return
        for number in range(int(first), int(last or first) + 1):
            yield from (f"{before}{number:0{len(first)}d}{rest}" for rest in _expand(after))


def _number(process: TrainingProcess, name: str) -> int | None:
    text = process.variable(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None

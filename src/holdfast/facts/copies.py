"""The copies of this command that a launcher started, one a node or more: which one this is, and where the first is.

``srun holdfast attach`` inside an allocation, and ``torchrun --nnodes … -m holdfast attach``, leave in the environment
of every copy what the copies need to find each other. Variables alone do not tell: a shell in the allocation, and a
container of the job, have them too. So the launcher has to be among the ancestors of this very process.

Sources: srun(1), "Output environment variables"; torch/distributed/elastic/agent (LocalElasticAgent).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import msgspec

from holdfast.facts.training_processes import ProcessTable, Seen, launcher_name

#: Slurm gives these numbers to the batch script, to `salloc` shells and their like, which are no `srun`.
_FIRST_RESERVED_STEP = 0xFFFFFF00
MOST_NAMES = 1 << 15
_MOST_DIGITS = 40
_RANGE = re.compile(r"([^\[]*)\[([\d,-]+)\](.*)", re.DOTALL)


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One copy. ``node`` counts from 0; ``names`` are those of the nodes, where the launcher says them.

    ``address`` is the host of node 0, ``word`` what only the copies of one start have in common, ``allocation`` the
    Slurm job in which it runs. ``speaks`` is False for further copies on one node: they have nothing to do.
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
        """What a node is called."""
        return f"node {self.names[node]}" if node < len(self.names) else f"node {node} of {self.nodes}"


def this_copy(table: ProcessTable) -> Copy | None:
    """Which copy this process is; None where it was started by hand."""
    me = table.seen(os.getpid())
    above = {launcher_name(seen.words) for seen in table.ancestors(me.pid)}
    return (_of_torchrun(me) if "torchrun" in above else None) or (_of_srun(me) if "srun" in above else None)


def _of_srun(me: Seen) -> Copy | None:
    numbers = [_number(me, name) for name in ("SLURM_STEP_ID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES")]
    step, node, nodes = numbers
    if step is None or node is None or nodes is None or step >= _FIRST_RESERVED_STEP or node >= nodes:
        return None
    names = tuple(names_of(me.variable("SLURM_STEP_NODELIST")))
    job = me.variable("SLURM_JOB_ID")
    return Copy(
        launcher="srun",
        node=node,
        nodes=nodes,
        address=names[0] if names else "",
        word=f"srun {job}.{step} {me.variable('SLURM_STEP_LAUNCHER_PORT')}",
        speaks=_number(me, "SLURM_LOCALID") in (None, 0),
        names=names,
        allocation=job,
    )


def _of_torchrun(me: Seen) -> Copy | None:
    node, nodes = _number(me, "GROUP_RANK"), _number(me, "GROUP_WORLD_SIZE")
    if node is None or nodes is None or node >= nodes or not me.variable("TORCHELASTIC_RUN_ID"):
        return None
    parts = (me.variable(name) for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"))
    return Copy(
        launcher="torchrun",
        node=node,
        nodes=nodes,
        address=me.variable("MASTER_ADDR"),
        word=" ".join(("torchrun", *parts)),
        speaks=_number(me, "LOCAL_RANK") in (None, 0),
    )


def names_of(nodelist: str) -> Iterator[str]:
    """The hosts of Slurm's short form, in its order: ``rack[1-2]n[08-10],login`` are seven; at most MOST_NAMES."""
    made = 0
    for part in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", nodelist):
        for name in _written_out(part):
            if (made := made + 1) > MOST_NAMES:
                return
            yield name


def _written_out(pattern: str) -> Iterator[str]:
    found = _RANGE.fullmatch(pattern)
    if found is None:
        yield pattern
        return
    before, ranges, after = found.groups()
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        if not first.isdigit() or not (last or first).isdigit() or len(first) + len(last) > _MOST_DIGITS:
            return
        for number in range(int(first), int(last or first) + 1):
            yield from (f"{before}{number:0{len(first)}d}{rest}" for rest in _written_out(after))


def _number(me: Seen, name: str) -> int | None:
    text = me.variable(name)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None

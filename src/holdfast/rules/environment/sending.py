"""Does a launcher send a variable to the ranks on the other hosts?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from holdfast.facts.environment import without_secret
from holdfast.facts.variables import DEEPSPEED_FILE as FILE
from holdfast.facts.variables import Given
from holdfast.findings import Finding
from holdfast.rules.environment.scene import claim, shown
from holdfast.variables import Status, family, table

#: Beginnings of what DeepSpeed's launcher sends: EXPORT_ENVS of its runner.py, and export_envs() of its accelerator.
SENT = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
#: What it works out itself for each rank (deepspeed/launcher/launch.py).
_ITS_OWN = frozenset({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK",
                      "LOCAL_WORLD_SIZE", "CROSS_RANK", "CROSS_SIZE", "CUDA_VISIBLE_DEVICES"})  # fmt: skip
#: Nobody reads these: that is said by itself, and sending them would not help.
_UNREAD = (Status.NEVER_READ, Status.REMOVED, Status.UNUSED)


def judge(given: Sequence[Given]) -> Iterator[Finding]:
    """Variables of scripts that start DeepSpeed on several hosts, and do not get there."""
    besides = {(str(PurePath(each.origin).parent), each.name) for each in given if PurePath(each.origin).name == FILE}
    for each in given:
        row = table().get(each.name)
        read = bool(family(each.name)) if row is None else row.status not in _UNREAD
        if each.sender is None or not read or each.name in _ITS_OWN or each.name.startswith(SENT):
            continue
        if (str(PurePath(each.origin).parent), each.name) not in besides:
            known = each.value or ""
            told = known.isprintable() and without_secret(each.name, known) == known
            yield claim(
                "variable-not-sent",
                f"{shown(each)} does not reach the ranks: with a hostfile, deepspeed (line {each.sender}) sends on "
                f"what begins with {', '.join(SENT[:-1])} or {SENT[-1]}, and what stands in {FILE}",
                each,
                advice=f"Write it into {FILE}, in the folder in which the launcher is started, or in the home folder.",
                command=f"echo {shlex.quote(f'{each.name}={known}')} >> {FILE}" if known and told else "",
                confidence=0.8,
            )

"""Starts dead ranks alone again, among survivors that go on in place (``runtime/surviving.py``), on a job of one node.

It reaches into torch's ``SubprocessContext`` (tested with torch 2.13.0); where that is another, :func:`can` says no.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
from torch.distributed.elastic.multiprocessing import LogsSpecs, api
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from holdfast.report.files import write_whole
from holdfast.runtime.generation import Worker
from holdfast.runtime.spares import Spares, handed_out
from holdfast.runtime.surviving import ABLE, AGAIN

_NEEDED = ("subprocess_handlers", "envs", "args", "entrypoint", "_running_local_ranks", "_tail_logs", "_numa_options")


def can(context: Any, workers: Collection[Worker]) -> bool:
    """Whether all ``workers``, the dead ones too, said that they can go on in place, and torch is as it is known."""
    known = all(hasattr(context, name) for name in _NEEDED) and hasattr(api, "get_subprocess_handler")
    return known and all(_beside(context.envs[worker.local_rank], ABLE).exists() for worker in workers)


def start(
    context: Any, dead: Collection[int], changed: Mapping[str, str], logs: LogsSpecs, spares: Spares, prefix: str
) -> dict[int, dict[str, str]]:
    """Start the local ranks ``dead`` in a generation of which ``changed`` tells; the environments of all local ranks.

    ``prefix`` stands in front of each line that a worker prints.
    """
    environments = {local_rank: {**own, **changed} for local_rank, own in context.envs.items()}
    places = logs.reify(environments)
    with handed_out(spares):
        for local_rank in dead:
            context.subprocess_handlers[local_rank] = vars(api)["get_subprocess_handler"](
                entrypoint=context.entrypoint, args=context.args[local_rank], env=environments[local_rank],
                stdout=places.stdouts[local_rank], stderr=places.stderrs[local_rank], local_rank_id=local_rank,
                numa_options=context._numa_options,  # noqa: SLF001 - as torch passes it
            )  # fmt: skip
            context._running_local_ranks.add(local_rank)  # noqa: SLF001
            line = {local_rank: prefix.replace("${rank}", environments[local_rank]["RANK"])}
            for files, shown in ((places.tee_stdouts, sys.stdout), (places.tee_stderrs, sys.stderr)):
                if local_rank in files:
                    tail = TailLog(context.name, {local_rank: files[local_rank]}, shown, line)
                    context._tail_logs.append(tail.start())  # noqa: SLF001
    context.envs = environments
    return environments


def tell(environments: Mapping[int, Mapping[str, str]], survivors: Collection[int]) -> None:
    """Tell the local ranks that survived where the new generation meets."""
    for local_rank in survivors:
        told = environments[local_rank]
        write_whole(_beside(told, AGAIN), msgspec.json.encode(told))


def _beside(environment: Mapping[str, str], suffix: str) -> Path:
    return Path(f"{environment.get('HOLDFAST_BOX', '')}{suffix}")

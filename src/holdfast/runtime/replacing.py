"""Starts dead ranks alone again, among survivors that go on in place (``runtime/surviving.py``).

It reaches into torch's ``SubprocessContext`` (tested with torch 2.13.0); where that is another, :func:`can` says no.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
from torch.distributed.elastic.multiprocessing import LogsSpecs, api
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from holdfast.report.files import write_whole
from holdfast.runtime.generation import Worker
from holdfast.runtime.spares import Spares, handed_out
from holdfast.runtime.surviving import ABLE, AGAIN, WAITS

#: A survivor that does not take its word for so long is stuck in something that knows of no ranks.
ANSWER_LIMIT_S = 5.0
#: A rank whose error may be of another's death waits so long at most where nobody died.
NOBODY_DIED_S = 3.0
_NEEDED = ("subprocess_handlers", "envs", "args", "entrypoint", "_running_local_ranks", "_tail_logs", "_numa_options")


def can(context: Any, workers: Collection[Worker]) -> bool:
    """Whether all ``workers``, the dead ones too, said that they can go on in place, and torch is as it is known."""
    known = all(hasattr(context, name) for name in _NEEDED) and hasattr(api, "get_subprocess_handler")
    return known and all(_beside(context.envs[worker.local_rank], ABLE).exists() for worker in workers)


def start(
    context: Any, dead: Collection[int], changed: Mapping[int, Mapping[str, str]], logs: LogsSpecs, spares: Spares,
    prefix: str,
) -> dict[int, dict[str, str]]:  # fmt: skip
    """Start the local ranks ``dead`` again, with variables ``changed`` by local rank; the environments of all of them.

    ``prefix`` stands in front of each line that a worker prints.
    """
    environments = {local_rank: {**own, **changed[local_rank]} for local_rank, own in context.envs.items()}
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


class Survivors:
    """The ranks of this node that live on while others are replaced: who was told to, and who waits to be told."""

    def __init__(self) -> None:
        self._told: dict[int, Path] = {}
        self._told_at = 0.0
        self._waiting_since: dict[int, float] = {}

    def tell(self, environments: Mapping[int, Mapping[str, str]], survivors: Collection[int]) -> None:
        """Tell the local ranks that survived where the new generation meets. Raises MissingFile."""
        self._told, self._told_at = {}, time.monotonic()
        for local_rank in survivors:
            file = _beside(environments[local_rank], AGAIN)
            write_whole(file, msgspec.json.encode(environments[local_rank]))
            self._told[local_rank] = file

    def silent(self) -> list[int]:
        """Local ranks that were told and did not take their word in time; each once."""
        if not self._told:
            return []
        self._told = {local_rank: file for local_rank, file in self._told.items() if file.exists()}
        if time.monotonic() - self._told_at < ANSWER_LIMIT_S:
            return []
        late = list(self._told)
        for file in self._told.values():
            file.unlink(missing_ok=True)
        self._told = {}
        return late

    def send_back(self, environments: Mapping[int, Mapping[str, str]]) -> None:
        """Nobody is known to be dead: who waits for a word although raises its error after all, a little later."""
        now = time.monotonic()
        waiting = [rank for rank, environment in environments.items() if _beside(environment, WAITS).exists()]
        self._waiting_since = {rank: self._waiting_since.get(rank, now) for rank in waiting}
        for local_rank, since in self._waiting_since.items():
            if now - since > NOBODY_DIED_S:
                write_whole(_beside(environments[local_rank], AGAIN), msgspec.json.encode({}))


def _beside(environment: Mapping[str, str], suffix: str) -> Path:
    return Path(f"{environment.get('HOLDFAST_BOX', '')}{suffix}")

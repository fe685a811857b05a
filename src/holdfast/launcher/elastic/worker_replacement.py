"""Start only the dead ranks again while the others continue (``training/in_process_restart.py``).

Uses private attributes of torch's ``SubprocessContext`` (torch 2.4 to 2.15); if they are missing,
:func:`can_replace` returns False.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from string import Template
from typing import Any

import msgspec
from torch.distributed.elastic.multiprocessing import LogsSpecs, api
from torch.distributed.elastic.multiprocessing.tail_log import TailLog

from holdfast.core.atomic_files import write_atomic
from holdfast.launcher.elastic.generation import Worker
from holdfast.launcher.elastic.standby_workers import StandbyPool
from holdfast.launcher.elastic.worker_start import use_own_start
from holdfast.launcher.terminal.connection import TerminalRelay
from holdfast.training.in_process_restart import RESTART_SUFFIX, RESTARTABLE_SUFFIX, WAITING_SUFFIX

#: A survivor that does not accept the restart for this long is blocked outside of collectives.
ACCEPT_TIMEOUT_S = 5.0
#: A rank whose error may be caused by another rank's death waits this long if no rank died.
NO_DEATH_TIMEOUT_S = 3.0
_REQUIRED_ATTRIBUTES = (
    "subprocess_handlers",
    "envs",
    "args",
    "entrypoint",
    "_running_local_ranks",
)
#: One of these has the threads that print output: a list, until torch 2.9 single ``TailLog``s.
_TAIL_LOGS = ("_tail_logs", "_stdout_tail")


def can_replace(context: Any, workers: Collection[Worker]) -> bool:
    """Return whether all ``workers``, dead ones included, support it, and torch's internals do."""
    return (
        all(hasattr(context, name) for name in _REQUIRED_ATTRIBUTES)
        and any(hasattr(context, name) for name in _TAIL_LOGS)
        and hasattr(api, "get_subprocess_handler")
        and all(
            _signal_file(context.envs[worker.local_rank], RESTARTABLE_SUFFIX).exists()
            for worker in workers
        )
    )


def changed_environments(group: Any, restarts: int) -> dict[int, dict[str, str]]:
    """Return by local rank the variables that change in a new generation of a worker group."""
    return {
        worker.local_rank: {
            "MASTER_ADDR": str(group.master_addr),
            "MASTER_PORT": str(group.master_port),
            "RANK": str(worker.global_rank),
            "WORLD_SIZE": str(worker.world_size),
            "ROLE_RANK": str(worker.role_rank),
            "ROLE_WORLD_SIZE": str(worker.role_world_size),
            "GROUP_RANK": str(group.group_rank),
            "GROUP_WORLD_SIZE": str(group.group_world_size),
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
        }
        for worker in group.workers
    }


def start_replacements(
    context: Any,
    dead: Collection[int],
    changed: Mapping[int, Mapping[str, str]],
    logs: LogsSpecs,
    standby: StandbyPool,
    terminal: TerminalRelay | None,
    prefix: str,
) -> dict[int, dict[str, str]]:
    """Start the ``dead`` local ranks again; return the environments of all local ranks.

    ``changed`` are variables by local rank; ``prefix`` is the template of what precedes each line
    of a worker's output.
    """
    environments = {
        local_rank: {**environment, **changed[local_rank]}
        for local_rank, environment in context.envs.items()
    }
    files = logs.reify(environments)
    # since torch 2.9
    numa = {"numa_options": context._numa_options} if hasattr(context, "_numa_options") else {}  # noqa: SLF001
    with use_own_start(standby, terminal):
        for local_rank in dead:
            context.subprocess_handlers[local_rank] = vars(api)["get_subprocess_handler"](
                entrypoint=context.entrypoint,
                args=context.args[local_rank],
                env=environments[local_rank],
                stdout=files.stdouts[local_rank],
                stderr=files.stderrs[local_rank],
                local_rank_id=local_rank,
                **numa,
            )
            context._running_local_ranks.add(local_rank)  # noqa: SLF001
            text = Template(prefix).safe_substitute(
                rank=environments[local_rank]["RANK"],
                local_rank=local_rank,
                role_name=context.name,
            )
            header = {local_rank: text}
            for printed, stream in (
                (files.tee_stdouts, sys.stdout),
                (files.tee_stderrs, sys.stderr),
            ):
                if local_rank in printed:
                    tail = TailLog(context.name, {local_rank: printed[local_rank]}, stream, header)
                    _add_tail_log(context, tail.start())
    context.envs = environments
    return environments


def _add_tail_log(context: Any, tail: TailLog) -> None:
    """Make the end of the context stop ``tail``, too."""
    if hasattr(context, "_tail_logs"):
        context._tail_logs.append(tail)  # noqa: SLF001
        return
    first = context._stdout_tail  # noqa: SLF001
    stop_first = first.stop

    def stop_both() -> None:
        stop_first()
        tail.stop()

    first.stop = stop_both


class SurvivingRanks:
    """The ranks of this node that continue while dead ones are replaced."""

    def __init__(self) -> None:
        self._notified: dict[int, Path] = {}
        self._notified_at = 0.0
        self._waiting_since: dict[int, float] = {}

    def notify(
        self, environments: Mapping[int, Mapping[str, str]], survivors: Collection[int]
    ) -> None:
        """Send the ``survivors`` (local ranks) the environment of the new generation.

        Raises:
            MissingFile: a file cannot be written.
        """
        self._notified, self._notified_at = {}, time.monotonic()
        for local_rank in survivors:
            file = _signal_file(environments[local_rank], RESTART_SUFFIX)
            write_atomic(file, msgspec.json.encode(environments[local_rank]))
            self._notified[local_rank] = file

    def take_unresponsive(self) -> list[int]:
        """Return the local ranks that did not accept in time, each once."""
        self._notified = {rank: file for rank, file in self._notified.items() if file.exists()}
        if not self._notified or time.monotonic() - self._notified_at < ACCEPT_TIMEOUT_S:
            return []
        late, self._notified = self._notified, {}
        for file in late.values():
            file.unlink(missing_ok=True)
        return list(late)

    def release_waiting(self, environments: Mapping[int, Mapping[str, str]]) -> None:
        """Let ranks that wait for a restart raise their error after a while: no rank died."""
        now = time.monotonic()
        waiting = [
            rank
            for rank, environment in environments.items()
            if _signal_file(environment, WAITING_SUFFIX).exists()
        ]
        self._waiting_since = {rank: self._waiting_since.get(rank, now) for rank in waiting}
        for rank, since in self._waiting_since.items():
            if now - since > NO_DEATH_TIMEOUT_S:
                file = _signal_file(environments[rank], RESTART_SUFFIX)
                write_atomic(file, msgspec.json.encode({}))


def _signal_file(environment: Mapping[str, str], suffix: str) -> Path:
    """Return the file beside a rank's trace file through which agent and rank communicate."""
    return Path(f"{environment.get('HOLDFAST_TRACE', '')}{suffix}")

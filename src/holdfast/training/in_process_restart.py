"""In-process restart: survivors of a dead rank keep interpreter, imports and CUDA context.

``holdfast.in_place(train)`` calls ``train``, which creates its process groups itself. When a rank
dies, the collectives of the others fail; `holdfast run` replaces the dead rank by a standby worker
and writes a restart order beside each survivor's trace file. The survivor destroys its groups and
calls ``train`` again. Anything unexpected, such as a group that does not end or an order that does
not arrive, ends the process with its original error, and the job restarts as usual.

Files beside the trace file: ``.in-place`` while the rank supports in-process restart, ``.waits``
while it handles an error that another rank's death may have caused, ``.again`` is the agent's
restart order: the new environment, or empty if no rank died.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist

from holdfast import recorder
from holdfast.core import settings
from holdfast.core.errors import HoldfastError

T = TypeVar("T")
RESTARTABLE_SUFFIX = ".in-place"
WAITING_SUFFIX = ".waits"
RESTART_SUFFIX = ".again"
#: Seconds a survivor waits for a restart order. The agent always writes one, unless it hangs.
ORDER_LIMIT_S = 60.0
#: Seconds that destroying the old groups may take.
DESTROY_LIMIT_S = 5.0
_POLL_S = 0.01
#: The reason with which holdfast's own waits end after a restart order.
PEER_DIED = "another rank died and is replaced"
#: Texts of errors that another rank's death causes: gloo's, NCCL's, the store's.
_PEER_FAILURE_TEXTS = (
    "gloo",
    "Connection closed by peer",
    "Connection reset",
    "NCCL",
    "Broken pipe",
    "aborted",
    "TCPStore",
    PEER_DIED,
)


def in_place(train: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call ``train(*args, **kwargs)``, again after each replacement of a dead rank.

    Returns its result. ``train`` begins with ``init_process_group`` and loads the newest state (a
    checkpoint in memory is the fastest). All ranks must call this. Outside `holdfast run` it only
    calls ``train``.
    """
    trace = settings.read_path("HOLDFAST_TRACE")
    if trace is None:
        return train(*args, **kwargs)
    while True:
        marker = Path(f"{trace}{RESTARTABLE_SUFFIX}")
        with suppress(OSError):
            marker.write_text(str(os.getpid()))
        try:
            return train(*args, **kwargs)
        except Exception as error:
            environment = _wait_for_restart_order(trace) if _is_peer_failure(error) else None
            if not environment:
                raise
        finally:
            marker.unlink(missing_ok=True)
        _join_next_generation(environment)


def has_restart_order() -> bool:
    """Return whether a restart order exists: what this rank waits for will never arrive."""
    trace = settings.read_path("HOLDFAST_TRACE")
    return trace is not None and Path(f"{trace}{RESTART_SUFFIX}").exists()


def _is_peer_failure(error: BaseException) -> bool:
    """Return whether another rank's death may have caused ``error``."""
    return any(
        isinstance(link, dist.DistError)
        or (
            isinstance(link, RuntimeError | HoldfastError)
            and any(text in str(link) for text in _PEER_FAILURE_TEXTS)
        )
        for link in _exception_chain(error)
    )


def _exception_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes and contexts."""
    visited: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in visited:
        visited.add(id(current))
        yield current
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )


def _wait_for_restart_order(trace: Path) -> dict[str, str] | None:
    """Return the environment of the next generation; empty if no rank died, None on timeout."""
    order_file, waiting = Path(f"{trace}{RESTART_SUFFIX}"), Path(f"{trace}{WAITING_SUFFIX}")
    deadline = time.monotonic() + ORDER_LIMIT_S
    try:
        with suppress(OSError):
            waiting.touch()
        while time.monotonic() < deadline:
            with suppress(FileNotFoundError):
                environment = msgspec.json.decode(order_file.read_bytes(), type=dict[str, str])
                order_file.unlink()
                return environment
            time.sleep(_POLL_S)
        return None
    finally:
        waiting.unlink(missing_ok=True)


def _join_next_generation(environment: dict[str, str]) -> None:
    """Leave the old generation: destroy groups, replace environment, renew the trace."""
    destroyer = threading.Thread(target=_destroy_groups, daemon=True)
    destroyer.start()
    destroyer.join(DESTROY_LIMIT_S)
    if destroyer.is_alive():
        message = (
            f"the process groups could not be destroyed within {DESTROY_LIMIT_S:g} s of a "
            "rank's death"
        )
        raise RuntimeError(message)
    settings.apply_environment({**settings.current_environment(), **environment})
    recorder.renew_process_trace(
        rank=settings.read_count("RANK"),
        world_size=settings.read_count("WORLD_SIZE"),
        local_rank=settings.read_count("LOCAL_RANK"),
        generation=settings.read_count("TORCHELASTIC_RESTART_COUNT"),
    )


def _destroy_groups() -> None:
    if not dist.is_initialized():
        return
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if torch.cuda.is_initialized() and abort is not None:
        abort()  # kernels that wait for the dead rank would never end
    else:
        dist.destroy_process_group()

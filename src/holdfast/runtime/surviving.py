"""Recovery inside the process: the survivors of a dead rank keep interpreter, imports, memory and CUDA context.

``holdfast.in_place(train)`` calls ``train``, which makes its process groups itself. When a rank dies, the others'
collectives fail; `holdfast run` replaces the dead one by a spare process and writes beside the box of each survivor
where the new generation meets. The survivor drops its groups and calls ``train`` again. Whatever is odd, a group that
does not end, a word that does not come, ends the process with the error it had, and the job restarts as ever.

Files beside the box: ``.in-place`` lies there while the rank can go on in place, ``.waits`` while it has an error that
may be of another rank's death, ``.again`` is the agent's word: the new environment, or none where nobody died.
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

from holdfast import settings
from holdfast.errors import HoldfastError
from holdfast.runtime import recorder

T = TypeVar("T")
ABLE = ".in-place"
WAITS = ".waits"
AGAIN = ".again"
#: How long a survivor waits for a word; the agent gives one in any case, so that this is for one that hangs.
WORD_LIMIT_S = 60.0
#: How long old groups may take to end.
END_LIMIT_S = 5.0
_LOOK_EVERY_S = 0.01
#: With these words holdfast's own waits end where the agent has given its word.
PEER_DIED = "another rank died and is replaced"
#: In the text of an error that another rank's death causes: gloo's, NCCL's, the store's.
_OF_A_PEER = (
    "gloo", "Connection closed by peer", "Connection reset", "NCCL", "Broken pipe", "aborted", "TCPStore", PEER_DIED,
)  # fmt: skip


def in_place(train: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call ``train(*args, **kwargs)``, again wherever another rank died and was replaced; its result.

    ``train`` begins with ``init_process_group`` and loads its newest state (a checkpoint in memory is the fastest).
    All ranks must call this. Outside of `holdfast run` it is a call of ``train``.
    """
    box = settings.path("HOLDFAST_BOX")
    if box is None:
        return train(*args, **kwargs)
    while True:
        able = Path(f"{box}{ABLE}")
        with suppress(OSError):
            able.write_text(str(os.getpid()))
        try:
            return train(*args, **kwargs)
        except Exception as error:
            told = _word(box) if _is_of_a_peer(error) else None
            if not told:
                raise
        finally:
            able.unlink(missing_ok=True)
        _begin_again(told)


def is_told() -> bool:
    """Whether the agent waits for this rank to go on in place: what it is waiting for will never come."""
    box = settings.path("HOLDFAST_BOX")
    return box is not None and Path(f"{box}{AGAIN}").exists()


def _is_of_a_peer(error: BaseException) -> bool:
    """Whether the death of another rank may be what ``error`` tells of, or was raised because of."""
    return any(
        isinstance(each, dist.DistError)
        or (isinstance(each, RuntimeError | HoldfastError) and any(word in str(each) for word in _OF_A_PEER))
        for each in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it was raised from (or while they were handled)."""
    seen: set[int] = set()
    last: BaseException | None = error
    while last is not None and id(last) not in seen:
        seen.add(id(last))
        yield last
        last = last.__cause__ or (None if last.__suppress_context__ else last.__context__)


def _word(box: Path) -> dict[str, str] | None:
    """The environment of the next generation; empty where nobody died, None where no word comes."""
    file, waits = Path(f"{box}{AGAIN}"), Path(f"{box}{WAITS}")
    until = time.monotonic() + WORD_LIMIT_S
    try:
        with suppress(OSError):
            waits.touch()
        while time.monotonic() < until:
            with suppress(FileNotFoundError):
                told = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
                file.unlink()
                return told
            time.sleep(_LOOK_EVERY_S)
        return None
    finally:
        waits.unlink(missing_ok=True)


def _begin_again(told: dict[str, str]) -> None:
    """Leave the old generation behind: its groups, its environment, its record."""
    ended = threading.Thread(target=_drop_groups, daemon=True)
    ended.start()
    ended.join(END_LIMIT_S)
    if ended.is_alive():
        message = f"the process groups did not end within {END_LIMIT_S:g} s after another rank had died"
        raise RuntimeError(message)
    settings.take_on({**settings.environment(), **told})
    recorder.renew(
        rank=settings.count("RANK"), world_size=settings.count("WORLD_SIZE"),
        local_rank=settings.count("LOCAL_RANK"), generation=settings.count("TORCHELASTIC_RESTART_COUNT"),
    )  # fmt: skip


def _drop_groups() -> None:
    if not dist.is_initialized():
        return
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if torch.cuda.is_initialized() and abort is not None:
        abort()  # what waits for the dead rank on the device would go on waiting
    else:
        dist.destroy_process_group()

"""Dumps of torch's flight recorder from the ranks of a living job, where they listen for requests of them.

That is so where TORCH_NCCL_DEBUG_INFO_PIPE_FILE was set for the job and it is on NCCL; asking disturbs nobody.
"""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.facts import dumps
from holdfast.facts.dump_requests import DumpRequests
from holdfast.facts.dumps import DumpTable
from holdfast.facts.evidence import Kind, Piece
from holdfast.facts.jobs import Job

#: torch looks for requests once a second, and needs up to a second for its first dump.
ANSWER_LIMIT_S = 2.5
_POLL_S = 0.1


def take(job: Job) -> DumpTable | None:
    """The dumps of all ranks, put together; None where the ranks are not to be asked, or not all of them answer."""
    asked = [DumpRequests(rank.pid, rank.dumps) for rank in job.ranks if rank.dumps is not None and not rank.box]
    if not asked or len(asked) < job.world_size:
        return None
    until = time.monotonic() + ANSWER_LIMIT_S
    for request in asked:
        request.ask()
    while not all(request.file for request in asked):
        if time.monotonic() > until or any(request.trouble for request in asked):
            return None
        time.sleep(_POLL_S)
        for request in asked:
            request.read()
    return dumps.read([_piece(request.file) for request in asked if request.file is not None])


def _piece(file: Path) -> Piece:
    return Piece(str(file), Kind.DUMP, None, lambda: file.open("rb"))

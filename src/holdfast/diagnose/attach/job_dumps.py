"""Request flight-recorder dumps from the ranks of a running job.

Ranks serve requests only if the job runs on NCCL and was started with
TORCH_NCCL_DEBUG_INFO_PIPE_FILE. A request does not disturb the job.
"""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.diagnose.attach.jobs import HostJob
from holdfast.diagnose.dumps import dump_set
from holdfast.diagnose.dumps.dump_set import DumpTable
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from holdfast.watcher.flight_recorder.dump_requests import DumpRequests

#: torch checks for requests once a second, and takes up to a second for its first dump.
DUMP_TIMEOUT_S = 2.5
_POLL_S = 0.1


def request_dumps(job: HostJob) -> DumpTable | None:
    """Return the table of all ranks' dumps; None unless every rank of the job writes one."""
    requests = [
        DumpRequests(rank.pid, rank.dumps)
        for rank in job.ranks
        if rank.dumps is not None and not rank.trace_path
    ]
    if not requests or len(requests) < job.world_size:
        return None
    deadline = time.monotonic() + DUMP_TIMEOUT_S
    for request in requests:
        request.request()
    while not all(request.file for request in requests):
        if time.monotonic() > deadline or any(request.error for request in requests):
            return None
        time.sleep(_POLL_S)
        for request in requests:
            request.read()
    return dump_set.read_dumps(
        [_as_evidence(request.file) for request in requests if request.file is not None]
    )


def _as_evidence(path: Path) -> EvidenceFile:
    return EvidenceFile(str(path), EvidenceKind.DUMP, None, lambda: path.open("rb"))

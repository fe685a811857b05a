"""Timeouts are kept while the process of the job's store is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from holdfast import comm
from holdfast.core.errors import CollectiveTimeout, GroupBroken
from holdfast.training.collectives import call_with_timeout
from holdfast.training.collectives.groups import group_info
from tests.unit.training.collectives.ranks import run

#: What a loaded machine may add to a timeout.
SCHEDULING_S = 1.0
SERVER = """
import sys, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(120)
"""


def stop_store(rank: int) -> Any:
    """Rank 0 stops the process of the store; rank 1 does not enter the second call."""
    files = group_info.job_store()
    if rank == 0:
        server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        files.set("port", server.stdout.readline().strip())
    client = dist.TCPStore(
        "127.0.0.1", int(files.get("port")), is_master=False, timeout=timedelta(seconds=60)
    )
    group_info.job_store = lambda: PrefixStore("job", client)  # type: ignore[assignment]
    first = comm.all_reduce(torch.ones(2), timeout=20).tolist()
    fresh = dist.new_group()
    if rank == 1:
        files.wait(["done"], timedelta(seconds=40))
        return first
    os.kill(server.pid, signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(CollectiveTimeout) as caught:
        comm.all_reduce(torch.ones(2), timeout=2)
    took = time.monotonic() - began
    call_with_timeout._blocked_queries.clear()  # as if the store stopped now, before any query
    with pytest.raises(GroupBroken):
        comm.all_reduce(torch.ones(2), timeout=2)
    call_with_timeout._blocked_queries.clear()
    began = time.monotonic()
    with pytest.raises(CollectiveTimeout, match="needed for the first call, does not answer"):
        comm.all_reduce(torch.ones(2), group=fresh, timeout=2)
    took = max(took, time.monotonic() - began)
    call_with_timeout._blocked_queries.clear()
    began = time.monotonic()
    with pytest.raises(CollectiveTimeout, match=r"store did not answer within 2\.00 s"):
        comm.barrier("end", timeout=2)
    took = max(took, time.monotonic() - began)
    files.set("done", "")
    server.kill()
    return first, str(caught.value), caught.value.missing, took


def test_stopped_store_does_not_extend_timeouts(tmp_path: Path) -> None:
    result, other = run(2, stop_store, tmp_path, limit_s=90)
    first, text, missing, took = result
    assert first == other == [2.0, 2.0]
    assert (
        "the job's store, which lists arrivals, does not answer, "
        "and it did not finish within 2.00 s" in text
    )
    assert "at test_stopped_store.py:" in text
    assert missing == ()
    assert 2 <= took < 2 + 0.25 + SCHEDULING_S

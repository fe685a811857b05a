"""A job's store whose process stands still: limits are kept all the same."""

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
from holdfast.errors import CollectiveTimeout, GroupBroken
from holdfast.runtime.comm import aside, groups
from tests.runtime.comm.ranks import run

SERVER = """
import sys, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(120)
"""


def store_stops(rank: int) -> Any:
    """The store is that of a process which rank 0 stops; rank 1 does not come to the second call."""
    files = groups.job_store()
    if rank == 0:
        server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        files.set("port", server.stdout.readline().strip())
    client = dist.TCPStore("127.0.0.1", int(files.get("port")), is_master=False, timeout=timedelta(seconds=60))
    groups.job_store = lambda: PrefixStore("job", client)  # type: ignore[assignment]
    first = comm.all_reduce(torch.ones(2), timeout=20).tolist()
    fresh = dist.new_group()
    if rank == 1:
        files.wait(["told"], timedelta(seconds=40))
        return first
    os.kill(server.pid, signal.SIGSTOP)
    begun = time.monotonic()
    with pytest.raises(CollectiveTimeout) as caught:
        comm.all_reduce(torch.ones(2), timeout=2)
    took = time.monotonic() - begun
    aside._waiting.clear()  # as if the store stood still from now on, and nobody had asked it yet
    with pytest.raises(GroupBroken):
        comm.all_reduce(torch.ones(2), timeout=2)
    with pytest.raises(CollectiveTimeout, match="over which ranks meet first, does not answer"):
        comm.all_reduce(torch.ones(2), group=fresh, timeout=2)
    files.set("told", "")
    server.kill()
    return first, str(caught.value), caught.value.missing, took


def test_a_store_that_stands_still_makes_no_limit_longer(tmp_path: Path) -> None:
    told, other = run(2, store_stops, tmp_path, limit_s=90)
    first, text, missing, took = told
    assert first == other == [2.0, 2.0]
    assert "the job's store, which knows who came, does not answer, and it was not over within 2.00 s" in text
    assert "at test_silent_store.py:" in text
    assert missing == ()
    assert 2 <= took < 12

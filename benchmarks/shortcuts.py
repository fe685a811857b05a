"""What holdfast's shortcuts on gloo take beside torch's own calls: gathering, scattering, shared memory, exchange.

2 and 4 ranks on this host; the calls take turns, each begun by all ranks at once, and count as long as rank 0 is in
them. Shown are the median of the turns in ms, how many times faster than torch's that is (the median of the ratios of
each turn), and by how much the call raised the peak of rank 0's memory when it was made for the first time: that of a
shared tensor is the tensor itself. The exchange is measured over links with latency, where they can be had (links.py).
"""

from __future__ import annotations

import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.links import DEVICE, slow_links, why_not

if TYPE_CHECKING:
    import torch

RANKS = (2, 4)
BYTES = 100_000_000
SIZES = (4_096, 1 << 20, 16 << 20, BYTES)
ROUND_TRIP_MS = 10
_LARGE_TURNS, _TURNS = 10, 50

Calls = dict[str, Callable[[], Any]]


# ---- on a rank


def _peak_kib() -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def _extra_mib(call: Callable[[], Any]) -> float:
    """MiB by which the call raises the peak of this process' memory above what it has now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is what there is now
    before = _peak_kib()
    call()
    return (_peak_kib() - before) / 1024


def _compare(title: str, calls: Calls, turns: int) -> None:
    """The first of the calls is torch's."""
    import torch.distributed as dist  # noqa: PLC0415 - only ranks import torch

    extra = {name: _extra_mib(call) for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns + 2):
        for name, call in calls.items():
            dist.barrier()
            began = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - began)
    if dist.get_rank():
        return
    base, *_ = (values[2:] for values in taken.values())
    for name, values in taken.items():
        ratio = statistics.median(zero / value for zero, value in zip(base, values[2:], strict=True))
        middle = 1e3 * statistics.median(values[2:])
        where = f"{dist.get_world_size()} ranks, {title}"
        print(f"{where:38} {name:42} {middle:10.3f} {ratio:8.2f} {extra[name]:10.1f}", flush=True)


def _reduced(how: str, flat: torch.Tensor) -> None:
    """An all-reduce by this shortcut alone, as holdfast.comm.all_reduce makes it when it has chosen it."""
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.runtime.comm import exchange, shared_memory  # noqa: PLC0415
    from holdfast.runtime.comm.groups import state_of  # noqa: PLC0415
    from holdfast.runtime.comm.waiting import begin  # noqa: PLC0415

    call = begin(state_of(None), f"all_reduce of {flat.numel()}", 60.0)
    if how == "exchange":
        exchange.exchange(flat, dist.ReduceOp.SUM, call)
    else:
        assert shared_memory.usable(call)
        shared_memory.reduce_in_memory(flat, dist.ReduceOp.SUM, call)


def _gathers(_: int) -> None:
    """What torch copies."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.runtime.comm.gather import all_gather, reduce_scatter  # noqa: PLC0415

    whole, part = torch.ones(BYTES // 4), torch.ones(BYTES // 4 // dist.get_world_size())
    listed = list(whole.view(dist.get_world_size(), -1).unbind())
    _compare("all_gather of 100 MB", {
        "torch all_gather_into_tensor": lambda: dist.all_gather_into_tensor(whole, part),
        "torch all_gather into a list": lambda: dist.all_gather(listed, part),
        "holdfast all_gather": lambda: all_gather(whole, part),
    }, _LARGE_TURNS)  # fmt: skip
    _compare("reduce_scatter of 100 MB", {
        "torch reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part, whole),
        "holdfast reduce_scatter": lambda: reduce_scatter(part, whole),
    }, _LARGE_TURNS)  # fmt: skip


def _reductions(_: int) -> None:
    """What is reduced in memory that the ranks share."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.runtime.comm.shared_memory import shared_tensor  # noqa: PLC0415

    for size in SIZES:
        given, lying = torch.zeros(size // 4), shared_tensor((size // 4,))
        title = f"all_reduce of {size / 1e6:,.3g} MB" if size > SIZES[0] else "all_reduce of 4 KB"
        _compare(title, {
            "torch all_reduce": functools.partial(dist.all_reduce, given),
            "holdfast, shared memory": functools.partial(_reduced, "memory", given),
            "holdfast, of a shared tensor": functools.partial(_reduced, "memory", lying),
        }, _LARGE_TURNS if size > 1 << 20 else _TURNS)  # fmt: skip


def _delayed(_: int) -> None:
    """64 floats over a slow link."""
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    small = torch.zeros(64)
    _reduced("exchange", torch.zeros(1))  # what is imported for it is no memory of the call
    _compare(f"64 floats, {ROUND_TRIP_MS} ms round trip", {
        "torch all_reduce (gloo's ring)": lambda: dist.all_reduce(small),
        "holdfast, exchange": lambda: _reduced("exchange", small),
    }, _TURNS)  # fmt: skip


def _rank(rank: int, size: int, file: str, what: str) -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    store = dist.FileStore(file, size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=120))
    {"gathers": _gathers, "reductions": _reductions, "delayed": _delayed}[what](rank)
    dist.barrier()
    os._exit(0)


# ---- starting them


def _start(size: int, what: str, before: list[list[str]]) -> None:
    variables = {"OMP_NUM_THREADS": "1"} | ({"GLOO_SOCKET_IFNAME": DEVICE} if what == "delayed" else {})
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank, words in enumerate(before):
            command = [*words, sys.executable, "-W", "ignore", "-m", __name__, str(rank), str(size), f"{folder}/store"]
            ranks.append(subprocess.Popen([*command, what], env=os.environ | variables))
        try:
            statuses = [rank.wait(600) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert statuses == [0] * size


def _over_slow_links() -> None:
    if why := why_not():
        print(f"exchange: not measured, as {why}")
        return
    for size in RANKS:
        with slow_links(size, ROUND_TRIP_MS) as spaces:
            _start(size, "delayed", [["ip", "netns", "exec", space] for space in spaces])


def main() -> None:
    """Print the table."""
    print(f"{'':38} {'':42} {'ms':>10} {'faster':>8} {'extra MiB':>10}", flush=True)
    for size in RANKS:
        _start(size, "gathers", [[]] * size)
        _start(size, "reductions", [[]] * size)
    _over_slow_links()


if __name__ == "__main__":
    _rank(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])

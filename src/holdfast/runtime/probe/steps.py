"""The stages of one step, in a process of its own: store, group, barrier, all-reduces that are checked and timed."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore

from holdfast.runtime.probe import Failure, Plan, Stage, Timing
from holdfast.runtime.probe.watching import Trouble, Watch

_ROUNDS = 3
#: Sums of whole numbers below this are exact in float32 for up to 2**14 ranks.
_PERIOD = 97
_PLACE = re.compile(r"\[(?:enforce fail at )?/?[\w./-]+:\d+\]\.? ")


def step(plan: Plan, processes: int, say: Callable[[Stage | Failure], None]) -> None:
    """Go through the stages with the first so many ranks, or alone; ends the process where one fails."""
    watch = Watch(plan, processes, say, lambda limit_s: _client(plan, limit_s))
    try:
        store = _store(plan, processes, watch)  # noqa: SYNC005 - Watch.fail ends the process
        device = _group(plan, processes, store, watch)
        if processes > 1:
            _barrier(processes, watch)
        _all_reduce(plan, processes, device, watch)
        if processes > 1:
            _leave(plan, processes, watch)
    except (RuntimeError, ValueError, OSError, Trouble) as error:  # torch's own errors are RuntimeErrors
        watch.fail(_words(error), getattr(error, "missing", ()))


def keep(plan: Plan, ready: Callable[[], None], say: Callable[[Stage | Failure], None]) -> None:
    """Keep the store, until all ranks have left or this process is killed."""
    try:
        store = _client(plan, plan.limit_s, serve=True)
        ready()
        while not store.check([f"left/{rank}" for rank in range(plan.world)]):
            time.sleep(0.05)
    except RuntimeError as error:
        host = os.uname().nodename
        say(Failure(rank=plan.rank, host=host, stage="store", processes=plan.world, why=_words(error)))


def _client(plan: Plan, limit_s: float, *, serve: bool = False) -> TCPStore:
    """A connection to the store, or the store itself. Raises RuntimeError."""
    limit = timedelta(seconds=limit_s)
    return TCPStore(plan.address, plan.port, is_master=serve, timeout=limit, wait_for_workers=False)


def _store(plan: Plan, processes: int, watch: Watch) -> Store:
    """Reach the store that rank 0 keeps, and see who else does."""
    # Who is in none of the smaller steps waits for them too; where one fails, it hears of it.
    watch.begin("store", plan.wait_s * (1 + sum(1 < size < processes and plan.rank >= size for size in plan.steps)))
    if processes == 1:
        return HashStore()
    watch.connect()
    store = _client(plan, plan.limit_s)
    watch.meet()
    watch.done(Stage(name="store", processes=processes, took_s=watch.elapsed_s(), detail=f"all {processes} came"))
    return PrefixStore(f"group/{processes}", store)


def _group(plan: Plan, processes: int, store: Store, watch: Watch) -> torch.device:
    """Connect to every other rank (gloo), or make ready to (NCCL, which connects in the first collective)."""
    watch.begin("group")
    on_gpu = plan.backend == "nccl" or (not plan.backend and torch.cuda.is_available() and dist.is_nccl_available())
    backend = "nccl" if on_gpu else "gloo"
    which = plan.rank if plan.device is None else plan.device
    device = torch.device("cuda", which % max(torch.cuda.device_count(), 1)) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    rank = plan.rank if processes > 1 else 0
    limit = timedelta(seconds=plan.limit_s)
    dist.init_process_group(backend, store=store, rank=rank, world_size=processes, timeout=limit)
    watch.done(Stage(name="group", processes=processes, took_s=watch.elapsed_s(), detail=backend))
    return device


def _barrier(processes: int, watch: Watch) -> None:
    watch.begin("barrier")
    dist.barrier()
    watch.done(Stage(name="barrier", processes=processes, took_s=watch.elapsed_s()))


def _all_reduce(plan: Plan, processes: int, device: torch.device, watch: Watch) -> None:
    """Sums whose result is known, of growing sizes; each has the whole limit."""
    timings: list[Timing] = []
    began = time.monotonic()
    for size_bytes in plan.sizes_bytes:
        watch.begin(f"all-reduce of {_size(size_bytes)}")
        base = (torch.arange(max(size_bytes // 4, 1), dtype=torch.float32) % _PERIOD).to(device)
        own = base + (plan.rank if processes > 1 else 0)
        expected = base * processes + processes * (processes - 1) / 2
        took = []
        for _ in range(_ROUNDS):
            summed = own.clone()
            start = time.perf_counter()
            dist.all_reduce(summed)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            took.append(time.perf_counter() - start)
            _check(summed, expected)
        timings.append(Timing(size_bytes, min(took)))
    detail = ", ".join(f"{_size(each.size_bytes)} in {each.best_s * 1e3:.2f} ms" for each in (timings[0], timings[-1]))
    took_s = round(time.monotonic() - began, 4)
    watch.done(Stage(name="all-reduce", processes=processes, took_s=took_s, detail=detail, timings=tuple(timings)))


def _check(summed: torch.Tensor, expected: torch.Tensor) -> None:
    """Raises Trouble: a sum is not what it should be."""
    if not torch.equal(summed, expected):
        wrong = (summed != expected).nonzero().flatten()
        at = int(wrong[0])
        told = f"element {at} is {float(summed[at])}, and should be {float(expected[at])}"
        raise Trouble(f"{len(wrong)} of {summed.numel()} sums are wrong: {told}")


def _leave(plan: Plan, processes: int, watch: Watch) -> None:
    """Go when all have come to the end: who goes before looks like a rank that died."""
    watch.begin("end")
    watch.meet()
    if processes == plan.world:
        watch.left()


def _size(size_bytes: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:g} {name}"
    return f"{size_bytes} B"


def _words(error: Exception) -> str:
    """The first line of an error of torch's, without the places in its C++ where it arose."""
    line = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return _PLACE.sub("", line)[:300]

"""Compress gradients through torch's own hooks, if measurements show that it pays on the link.

For DDP these are the hooks of ``torch.distributed.algorithms.ddp_comm_hooks`` (fp16, bf16,
PowerSGD), for FSDP2 its ``set_custom_reduce_scatter``. Casting costs time: on loopback it took
longer than it saved, on 1 Gbit/s the sum was 1.8 times as fast (docs/benchmarks.md).
``torchrun … -m holdfast.training.collectives --measure`` prints the result for a link.
"""

from __future__ import annotations

import functools
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from holdfast.core.errors import InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.training.collectives.backend_calls import start_all_reduce
from holdfast.training.collectives.bounded_wait import begin_call, wait_for_works
from holdfast.training.collectives.groups.group_info import runs_alone, state_of

CompressionKind = Literal["fp16", "bf16", "powersgd"]
#: Chosen automatically. PowerSGD loses too much precision for that and must be requested.
AUTOMATIC: tuple[CompressionKind, ...] = ("bf16", "fp16")
#: Smallest speed-up that is worth the lost precision.
MIN_SPEEDUP = 1.1
#: Default size of DDP's buckets.
BUCKET_BYTES = 25 * 2**20
MEASURE_LIMIT_S = 300.0
_TURNS = 9
#: Size of DDP's first bucket, which is small so that communication starts early.
_FIRST_BUCKET_BYTES = 2**20
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

_log = logging.getLogger("holdfast.comm")


@dataclass(frozen=True)
class CompressionTiming:
    """Seconds to sum a bucket of ``elements`` float32, plain and compressed; equal on all ranks.

    Each is the median over turns of the slowest rank's time.
    """

    elements: int
    plain_s: float
    compressed_s: dict[CompressionKind, float]

    def speedup(self, kind: CompressionKind) -> float:
        """Return the speed-up by compression; below 1 it is slower."""
        return self.plain_s / self.compressed_s[kind]

    def best(self, among: Iterable[CompressionKind] = AUTOMATIC) -> CompressionKind | None:
        """Return the fastest kind that pays; None if none does."""
        kinds = [
            kind
            for kind in among
            if kind in self.compressed_s and self.speedup(kind) >= MIN_SPEEDUP
        ]
        return max(kinds, key=self.speedup, default=None)

    def describe(self, kind: CompressionKind) -> str:
        """Return one line, such as ``bf16 does not pay on this link: 0.71x (…)``."""
        verdict = "pays" if self.speedup(kind) >= MIN_SPEEDUP else "does not pay"
        size = f"{4 * self.elements / 1e6:.1f} MB of gradients"
        times = f"in {self.compressed_s[kind]:.3g} s, uncompressed in {self.plain_s:.3g} s"
        return f"{kind} {verdict} on this link: {self.speedup(kind):.2f}x ({size} {times})"


@suggest_keywords
def compress(
    model: torch.nn.Module,
    kind: CompressionKind | Literal["auto"] | None = "auto",
    *,
    measure: bool = True,
    powersgd: powerSGD_hook.PowerSGDState | None = None,
) -> CompressionKind | None:
    """Compress a model's gradients before they are summed; return the chosen kind, or None.

    All ranks call this once after ``DistributedDataParallel(model)`` or ``fully_shard(model)``,
    before the first backward pass. ``auto`` chooses what pays on this link, or nothing; another
    ``kind`` is used in any case, and with ``measure`` the log reports whether it pays.
    ``powersgd``: its settings, if not torch's own (compress from step 1,000 on). Under FSDP2 the
    reduce-scatter is compressed; sums between replicas of HSDP are not.

    Raises:
        InvalidValue: the model is neither DDP's nor FSDP2's, or does not support this kind.
        CollectiveTimeout, CollectiveFailed, GroupBroken: the measurement failed.
    """
    if kind is None or runs_alone(None):
        return None
    ddp = model if isinstance(model, DistributedDataParallel) else None
    parts = [model] if ddp is not None else _sharded_modules(model)
    refusal = _find_refusal(model, kind, parts)
    if refusal:
        raise InvalidValue(f"compress: {kind!r}", why=refusal)
    chosen: CompressionKind | None = None if kind == "auto" else kind
    if kind == "auto" or measure:
        size = min(BUCKET_BYTES // 4, sum(each.numel() for each in model.parameters()))
        device = next(model.parameters()).device
        kinds = AUTOMATIC if kind == "auto" else (kind,)
        group = ddp.process_group if ddp is not None else None
        timing = measure_link(size, kinds, group, device=device)
        chosen = timing.best() if kind == "auto" else kind
        for measured in timing.compressed_s:
            _log.info("%s", timing.describe(measured))
    if chosen is not None:
        _register(model, chosen, parts, powersgd)
    return chosen


def _sharded_modules(model: torch.nn.Module) -> list[Any]:
    """Return the modules with ``fully_shard``, each of which sums its own gradients."""
    return [part for part in model.modules() if hasattr(part, "set_custom_reduce_scatter")]


def _find_refusal(model: torch.nn.Module, kind: str, parts: Sequence[object]) -> str:
    if kind not in ("auto", "powersgd", *_DTYPES):
        return "choose from auto, fp16, bf16 and powersgd"
    if not parts:
        return "wrap the model by DistributedDataParallel, or fully_shard of a torch with its hooks"
    if kind != "powersgd":
        return ""
    if not isinstance(model, DistributedDataParallel):
        return "PowerSGD needs whole gradients, which FSDP2 does not have; use bf16"
    if "gloo" in str(dist.get_backend(model.process_group)) and (remedy := _single_bucket(model)):
        return f"on gloo PowerSGD fails with several buckets (collectives out of order); {remedy}"
    return ""


def _single_bucket(model: DistributedDataParallel) -> str:
    """Return how to get all gradients into one bucket; empty if they are in one.

    DDP refills its buckets after the first step.
    """
    trained = [each for each in model.parameters() if each.requires_grad]
    if len({(each.dtype, each.device) for each in trained}) > 1:
        return "each dtype and device has its own bucket, so use bf16"
    nbytes = sum(each.numel() * each.element_size() for each in trained)
    is_default = getattr(model, "bucket_bytes_cap_default", True)
    capacity = _FIRST_BUCKET_BYTES if is_default else model.bucket_bytes_cap
    return (
        f"set DistributedDataParallel bucket_cap_mb={nbytes // 2**20 + 1}"
        if nbytes >= capacity
        else ""
    )


def _register(
    model: torch.nn.Module,
    kind: CompressionKind,
    parts: Sequence[Any],
    powersgd: powerSGD_hook.PowerSGDState | None,
) -> None:
    if not isinstance(model, DistributedDataParallel):
        for part in parts:
            part.set_custom_reduce_scatter(CompressedReduceScatter(_DTYPES[kind]))
    elif kind == "powersgd":
        state = powersgd or powerSGD_hook.PowerSGDState(model.process_group)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(model.process_group, _HOOKS[kind])


def _rename_hook(hook: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return the hook under another name.

    DDP refuses torch's bf16 hook on gloo by its name alone, although gloo sums bfloat16.
    """

    @functools.wraps(hook)  # DDP reads the annotations
    def renamed(group: dist.ProcessGroup, bucket: Any) -> Any:
        return hook(group, bucket)

    renamed.__name__ = renamed.__qualname__ = name
    return renamed


_HOOKS = {
    "fp16": _rename_hook(default_hooks.fp16_compress_hook, "holdfast_fp16"),
    "bf16": _rename_hook(default_hooks.bf16_compress_hook, "holdfast_bf16"),
}


class CompressedReduceScatter:
    """For FSDP2's ``set_custom_reduce_scatter``: cast gradients, sum in ``dtype``, cast back.

    They are divided by the number of ranks first, so that no sum exceeds the range of float16.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.calls = 0

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Allocate memory for gradients in FSDP2's dtype."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002 - FSDP2's own signature
    ) -> dist.Work | None:
        """Sum or average ``input_tensor`` over the ranks into their ``output_tensor``."""
        self.calls += 1
        is_sum = op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG)
        if not is_sum or input_tensor.dtype == self.dtype or async_op:
            return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)  # type: ignore[no-any-return]
        size = group.size()
        cast = (input_tensor / size).to(self.dtype)
        part = torch.empty_like(output_tensor, dtype=self.dtype)
        dist.reduce_scatter_tensor(part, cast, dist.ReduceOp.SUM, group)
        output_tensor.copy_(part)
        if op == dist.ReduceOp.SUM:
            output_tensor.mul_(size)
        return None


# ---- measuring


def measure_link(
    elements: int = BUCKET_BYTES // 4,
    kinds: Sequence[CompressionKind] = AUTOMATIC,
    group: dist.ProcessGroup | None = None,
    *,
    device: torch.device | None = None,
    timeout: float = MEASURE_LIMIT_S,
) -> CompressionTiming:
    """Time the sum of a bucket of ``elements`` float32, plain and compressed; all ranks call it.

    Raises:
        InvalidValue, CollectiveTimeout, CollectiveFailed, GroupBroken: as
            :func:`holdfast.comm.all_reduce`.
    """
    state = state_of(group)
    device = device if device is not None else state.device
    signature = f"compression measurement of {elements:,} float32 by {', '.join(kinds)}"
    call = begin_call(state, signature, timeout)

    def sum_in_place(tensor: torch.Tensor) -> None:
        wait_for_works([start_all_reduce(tensor, dist.ReduceOp.SUM, state)], call)

    bucket = torch.rand(elements, device=device)
    runs: list[Callable[[], None]] = [lambda: sum_in_place(bucket)]
    for kind in kinds:
        if kind == "powersgd":
            runs.append(_powersgd_run(bucket, sum_in_place))
        else:
            runs.append(_cast_run(bucket, _DTYPES[kind], sum_in_place))
    times = torch.empty(_TURNS, len(runs), dtype=torch.float64)
    for turn in range(-1, _TURNS):  # the first turn warms up
        for column, run in enumerate(runs):
            sum_in_place(torch.zeros(1, device=device))  # all ranks start together
            began = time.perf_counter()
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if turn >= 0:
                times[turn, column] = time.perf_counter() - began
        bucket.fill_(0.5)
    slowest = times.to(device)
    wait_for_works([start_all_reduce(slowest, dist.ReduceOp.MAX, state)], call)
    plain, *compressed = (statistics.median(column) for column in slowest.t().tolist())
    return CompressionTiming(elements, plain, dict(zip(kinds, compressed, strict=True)))


def _cast_run(
    bucket: torch.Tensor, dtype: torch.dtype, sum_in_place: Callable[[torch.Tensor], None]
) -> Callable[[], None]:
    def run() -> None:
        small = bucket.to(dtype)
        sum_in_place(small)
        bucket.copy_(small)

    return run


def _powersgd_run(
    bucket: torch.Tensor, sum_in_place: Callable[[torch.Tensor], None]
) -> Callable[[], None]:
    """Return one rank-1 step over the bucket as a square matrix (Vogels 2019, algorithm 1)."""
    side = int(bucket.numel() ** 0.5)
    matrix = bucket[: side * side].view(side, side)
    q = torch.rand(side, 1, device=bucket.device)

    def run() -> None:
        p = matrix @ q
        sum_in_place(p)
        p /= p.norm() + 1e-8
        back = matrix.t() @ p
        sum_in_place(back)
        torch.mm(p, back.t(), out=matrix)

    return run

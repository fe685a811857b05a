"""Gradients that travel in fewer bytes, through torch's own hooks, where it is measured that this pays on the link.

For DDP these are the hooks of ``torch.distributed.algorithms.ddp_comm_hooks`` (fp16, bf16, PowerSGD), for FSDP2 its
``set_custom_reduce_scatter``. Casting costs time, too: on loopback it took longer than it saved, on 1 Gbit/s the
sum was 1.8 times as fast (docs/benchmarks.md). ``torchrun … -m holdfast.runtime.comm --measure`` tells.
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

from holdfast.errors import BadValue
from holdfast.runtime.comm.groups import state_of
from holdfast.runtime.comm.waiting import begin, finish
from holdfast.runtime.comm.ways import start

Kind = Literal["fp16", "bf16", "powersgd"]
#: What is taken by itself: PowerSGD loses too much for that, and has to be asked for.
AUTOMATIC: tuple[Kind, ...] = ("bf16", "fp16")
#: Compression that wins less than this is not chosen: it costs digits.
WORTH = 1.1
#: Bytes of DDP's bucket where it was given no size.
BUCKET_BYTES = 25 * 2**20
MEASURE_LIMIT_S = 300.0
_ROUNDS = 9
#: What torch takes for the first bucket, which it makes small so that communication begins early.
_FIRST_BUCKET_BYTES = 2**20
_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}

_log = logging.getLogger("holdfast.comm")


@dataclass(frozen=True)
class Measurement:
    """Seconds that a bucket of ``elements`` float32 takes as it is and compressed: the median of the slowest rank.

    It is the same on all ranks.
    """

    elements: int
    plain_s: float
    compressed_s: dict[Kind, float]

    def ratio(self, kind: Kind) -> float:
        """How many times as fast compression is; below 1 it is slower."""
        return self.plain_s / self.compressed_s[kind]

    def best(self, among: Iterable[Kind] = AUTOMATIC) -> Kind | None:
        """The fastest kind that pays; None where none does."""
        kinds = [kind for kind in among if kind in self.compressed_s and self.ratio(kind) >= WORTH]
        return max(kinds, key=self.ratio, default=None)

    def say(self, kind: Kind) -> str:
        """``bf16 does not pay on this link: 0.71x (26.2 MB of gradients in 0.052 s, uncompressed in 0.037 s)``."""
        pays = "pays" if self.ratio(kind) >= WORTH else "does not pay"
        size = f"{4 * self.elements / 1e6:.1f} MB of gradients"
        times = f"in {self.compressed_s[kind]:.3g} s, uncompressed in {self.plain_s:.3g} s"
        return f"{kind} {pays} on this link: {self.ratio(kind):.2f}x ({size} {times})"


def compress(
    model: torch.nn.Module,
    kind: Kind | Literal["auto"] | None = "auto",
    *,
    measure: bool = True,
    powersgd: powerSGD_hook.PowerSGDState | None = None,
) -> Kind | None:
    """Have a model's gradients compressed before they are summed; what was chosen is returned, None for nothing.

    Called once on all ranks after ``DistributedDataParallel(model)`` or ``fully_shard(model)``, before the first
    backward pass. ``auto`` takes what pays on this link, or nothing; another ``kind`` is taken even so, and with
    ``measure`` the log says if it pays. ``powersgd``: its settings, where torch's own (compress from step 1,000 on) are
    not meant. Under FSDP2 the reduce-scatter is compressed; sums between replicas of HSDP are not.

    Raises:
        BadValue: the model is neither DDP's nor FSDP2's, or this kind does not work there.
        CollectiveTimeout, CollectiveFailed, GroupBroken: measuring did not end well.
    """
    if kind is None:
        return None
    parts = [model] if isinstance(model, DistributedDataParallel) else _sharded_parts(model)
    wrong = _wrong_with(model, kind, parts)
    if wrong:
        raise BadValue(f"compression of gradients by {kind}", why=wrong)
    group = model.process_group if isinstance(model, DistributedDataParallel) else None
    chosen: Kind | None = None if kind == "auto" else kind
    if kind == "auto" or measure:
        size = min(BUCKET_BYTES // 4, sum(each.numel() for each in model.parameters()))
        device = next(model.parameters()).device
        found = measure_link(size, AUTOMATIC if kind == "auto" else (kind,), group, device=device)
        chosen = found.best() if kind == "auto" else kind
        for each in found.compressed_s:
            _log.info("%s", found.say(each))
    if chosen is not None:
        _register(model, chosen, parts, powersgd)
    return chosen


def _sharded_parts(model: torch.nn.Module) -> list[Any]:
    """The modules that ``fully_shard`` was applied to, each of which sums its gradients by itself."""
    return [part for part in model.modules() if hasattr(part, "set_custom_reduce_scatter")]


def _wrong_with(model: torch.nn.Module, kind: str, parts: Sequence[object]) -> str:
    if kind not in ("auto", "powersgd", *_DTYPES):
        return "it is none of auto, fp16, bf16 and powersgd"
    if not parts:
        return (
            "the model is wrapped neither by DistributedDataParallel nor by fully_shard (of a torch that takes hooks)"
        )
    if kind != "powersgd":
        return ""
    if not isinstance(model, DistributedDataParallel):
        return "PowerSGD needs whole gradients, which FSDP2 does not have; take bf16"
    if "gloo" in str(dist.get_backend(model.process_group)) and (why := _several_buckets(model)):
        return f"on gloo its collectives get out of order with several buckets, and fail: {why}"
    return ""


def _several_buckets(model: DistributedDataParallel) -> str:
    """Why DDP's gradients may be in several buckets (it fills them anew after the first step); empty if in one."""
    trained = [each for each in model.parameters() if each.requires_grad]
    if len({(each.dtype, each.device) for each in trained}) > 1:
        return "the parameters have several dtypes, and so several buckets; take bf16"
    total = sum(each.numel() * each.element_size() for each in trained)
    room = _FIRST_BUCKET_BYTES if getattr(model, "bucket_bytes_cap_default", True) else model.bucket_bytes_cap
    return f"give DistributedDataParallel bucket_cap_mb={total // 2**20 + 1}" if total >= room else ""


def _register(
    model: torch.nn.Module, kind: Kind, parts: Sequence[Any], powersgd: powerSGD_hook.PowerSGDState | None
) -> None:
    if not isinstance(model, DistributedDataParallel):
        for part in parts:
            part.set_custom_reduce_scatter(CompressedReduceScatter(_DTYPES[kind]))
    elif kind == "powersgd":
        state = powersgd if powersgd is not None else powerSGD_hook.PowerSGDState(model.process_group)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(model.process_group, _HOOKS[kind])


def _renamed(hook: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The hook under another name: by its name alone DDP refuses torch's for bf16 on gloo, which sums bfloat16 well."""

    @functools.wraps(hook)  # DDP looks at the annotations
    def renamed(group: dist.ProcessGroup, bucket: Any) -> Any:
        return hook(group, bucket)

    renamed.__name__ = renamed.__qualname__ = name
    return renamed


_HOOKS = {
    "fp16": _renamed(default_hooks.fp16_compress_hook, "holdfast_fp16"),
    "bf16": _renamed(default_hooks.bf16_compress_hook, "holdfast_bf16"),
}


class CompressedReduceScatter:
    """For FSDP2's ``set_custom_reduce_scatter``: gradients are cast, summed in ``dtype``, and cast back.

    They are divided by the number of ranks before, so that no sum is larger than what float16 holds.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.calls = 0

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory for gradients as FSDP2 has them."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002 - FSDP2's own signature
    ) -> dist.Work | None:
        """Sum or average ``input_tensor`` over the ranks, of which each gets its part as ``output_tensor``."""
        self.calls += 1
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG) or input_tensor.dtype == self.dtype or async_op:
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
    kinds: Sequence[Kind] = AUTOMATIC,
    group: dist.ProcessGroup | None = None,
    *,
    device: torch.device | None = None,
    timeout: float = MEASURE_LIMIT_S,
) -> Measurement:
    """Time the sum of one bucket of ``elements`` float32 as it is and compressed, in turns; all ranks call it.

    Raises:
        BadValue, CollectiveTimeout, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    state = state_of(group)
    where = device if device is not None else state.device
    call = begin(state, f"measuring compression of {elements:,} float32 by {', '.join(kinds)}", timeout)

    def total(tensor: torch.Tensor) -> None:
        finish([start(tensor, dist.ReduceOp.SUM, state)], call)

    bucket = torch.rand(elements, device=where)
    ways: list[Callable[[], None]] = [lambda: total(bucket)]
    ways += [_powersgd(bucket, total) if kind == "powersgd" else _cast(bucket, _DTYPES[kind], total) for kind in kinds]
    taken = torch.empty(_ROUNDS, len(ways), dtype=torch.float64)
    for turn in range(-1, _ROUNDS):  # one turn to warm up
        for at, way in enumerate(ways):
            total(torch.zeros(1, device=where))  # begin together
            began = time.perf_counter()
            way()
            if where.type == "cuda":
                torch.cuda.synchronize(where)
            if turn >= 0:
                taken[turn, at] = time.perf_counter() - began
        bucket.fill_(0.5)
    slowest = taken.to(where)
    finish([start(slowest, dist.ReduceOp.MAX, state)], call)
    plain, *compressed = (statistics.median(column) for column in slowest.t().tolist())
    return Measurement(elements, plain, dict(zip(kinds, compressed, strict=True)))


def _cast(bucket: torch.Tensor, dtype: torch.dtype, total: Callable[[torch.Tensor], None]) -> Callable[[], None]:
    def way() -> None:
        small = bucket.to(dtype)
        total(small)
        bucket.copy_(small)

    return way


def _powersgd(bucket: torch.Tensor, total: Callable[[torch.Tensor], None]) -> Callable[[], None]:
    """One step of rank 1 over the bucket as a square matrix (Vogels et al., 2019, algorithm 1)."""
    side = int(bucket.numel() ** 0.5)
    matrix = bucket[: side * side].view(side, side)
    q = torch.rand(side, 1, device=bucket.device)

    def way() -> None:
        p = matrix @ q
        total(p)
        p /= p.norm() + 1e-8
        back = matrix.t() @ p
        total(back)
        torch.mm(p, back.t(), out=matrix)

    return way

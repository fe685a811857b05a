"""Train the pipeline stages that ``heterogeneous.yaml`` describes, on ranks with unequal shares.

Every stage processes the whole global batch, divided over its ranks in their own micro-batches, so
that a stage may have another number of ranks, and other sizes, than the next. An output is sent to
the ranks of the next stage whose micro-batches contain its samples (:func:`overlaps`). A step is
GPipe's: all forwards, then all backwards, then one sum of gradients over the ranks of each stage.

Messages of a pair of ranks have the order (stage, first sample) on both sides, sends never block,
and a stage receives only from the stage before it: no schedule of ranks can deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.core.errors import CollectiveFailed, InvalidValue
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.core.text import format_duration
from holdfast.training.collectives import all_reduce, broadcast, timeouts
from holdfast.training.collectives.groups.group_creation import create_group
from holdfast.training.collectives.groups.group_info import state_of
from holdfast.training.heterogeneous.config import HeterogeneousConfig

Spans = Mapping[int, tuple[range, ...]]
_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_MAX_DIMENSIONS = 7
#: Timeout of the stages' groups themselves; calls have their own.
_GROUP_LIMIT = timedelta(minutes=10)
_CREATION_LIMIT_S = 300.0


class Piece(NamedTuple):
    """Samples of a global batch that one rank sends to another at a stage boundary."""

    rank: int
    samples: range


def overlaps(samples: range, spans: Spans) -> list[Piece]:
    """Return which ranks of another stage hold parts of ``samples``, in their order."""
    pieces = [
        Piece(rank, range(max(samples.start, span.start), min(samples.stop, span.stop)))
        for rank, micro_batches in spans.items()
        for span in micro_batches
    ]
    return sorted((piece for piece in pieces if piece.samples), key=lambda each: each.samples.start)


@dataclass(frozen=True)
class _MicroBatch:
    """A micro-batch between its forward and its backward; ``result``: output, or weighted loss."""

    received: Tensor | None
    result: Tensor


@suggest_keywords
class HeterogeneousPipeline:
    """The pipeline stages of this rank, and their exchange with other ranks. All ranks create it.

    ``build(stage)`` returns the module of a stage; it is called for the stages of this rank only,
    and their weights are those of the stage's first rank. A stage takes and returns one tensor
    whose first dimension is the samples. ``loss(output, target)`` returns the mean over the samples
    of a micro-batch. Each stage computes in the precision of its group, with ``torch.autocast``.
    ``timeout``: per message and sum; None takes that of :mod:`holdfast.comm`.

    Raises:
        InvalidValue: the configuration is for another number of ranks, or a stage is to compute in
            fp16, which needs one loss scale on all stages.
        CollectiveTimeout: ranks did not join the creation of the groups.
    """

    def __init__(
        self,
        config: HeterogeneousConfig,
        build: Callable[[int], nn.Module],
        loss: Callable[[Tensor, Any], Tensor],
        *,
        timeout: float | str | None = None,
    ) -> None:
        self._rank, world = dist.get_rank(), dist.get_world_size()
        if config.world != world:
            why = f"it is for {config.world} ranks, but the job has {world}"
            raise InvalidValue("the pipeline's configuration", why=why)
        if any(group.precision == "fp16" for group in config.groups):
            raise InvalidValue(
                "the pipeline's precision",
                why="fp16 needs one loss scale on all stages, which is not built",
                next_step="use bf16 or fp32",
            )
        self.config, self._loss, self._timeout = config, loss, timeout
        self._spans = [config.spans(stage) for stage in range(config.stages)]
        self._device = state_of(None).device
        self._limit_s = timeouts.choose_limit(state_of(None), 0, timeout=timeout)
        own = [stage for stage, spans in enumerate(self._spans) if self._rank in spans]
        self.stages = {stage: build(stage) for stage in own}
        self._groups = self._create_groups()
        for stage, module in self.stages.items():
            for tensor in (*module.parameters(), *module.buffers()):
                self._share_first(stage, tensor.detach())
        self._sends: list[tuple[dist.Work, Tensor]] = []
        self._local: dict[tuple[int, int], Tensor] = {}

    @property
    def input_samples(self) -> tuple[range, ...]:
        """Return which samples of a global batch each input of this rank has; () after stage 0."""
        return self._spans[0].get(self._rank, ())

    @property
    def target_samples(self) -> tuple[range, ...]:
        """Return the same of its targets; () before the last stage."""
        return self._spans[-1].get(self._rank, ())

    def parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters of this rank's stages, for its optimizer."""
        for module in self.stages.values():
            yield from module.parameters()

    def step(self, inputs: Sequence[Tensor] = (), targets: Sequence[Any] = ()) -> float:
        """Run one step up to the gradients; return the mean loss of the global batch, on all ranks.

        ``inputs`` and ``targets``: one for each of ``input_samples`` and ``target_samples``.
        Gradients are added to ``.grad``, so that they equal those of one process that trains on
        the global batch.

        Raises:
            InvalidValue: other numbers of inputs, targets or samples than in the configuration, or
                a stage does not return one tensor.
            CollectiveFailed: a rank of a neighboring stage did not send or receive in time.
            CollectiveTimeout: a rank did not join a sum.
        """
        _check_sizes("inputs", inputs, self.input_samples)
        _check_sizes("targets", targets, self.target_samples)
        held: dict[tuple[int, int], _MicroBatch] = {}
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for stage in self.stages:
            for index, samples in enumerate(self._spans[stage][self._rank]):
                if stage == 0:
                    batch = self._forward(stage, samples, None, inputs[index])
                else:
                    received = self._receive_output(stage, samples)
                    weight = next(self.stages[stage].parameters(), received)
                    batch = self._forward(stage, samples, received, received.to(weight))
                if stage == len(self._spans) - 1:
                    mean = self._loss(batch.result, targets[index])
                    weighted = mean * (len(samples) / self.config.batch)
                    total += weighted.detach().to(total)
                    batch = _MicroBatch(batch.received, weighted)
                held[stage, samples.start] = batch
        for stage in reversed(self.stages):
            for samples in self._spans[stage][self._rank]:
                self._backward(stage, samples, held.pop((stage, samples.start)))
        self._finish_sends()
        self._sum_gradients()
        return float(all_reduce(total, timeout=self._timeout))

    def _forward(
        self, stage: int, samples: range, received: Tensor | None, value: Tensor
    ) -> _MicroBatch:
        with self._autocast(value.device.type):
            output = self.stages[stage](value)
        if not isinstance(output, Tensor) or len(output) != len(samples):
            raise InvalidValue(
                f"the output of stage {stage}",
                why=f"a tensor of {len(samples)} samples is needed, not {_describe(output)}",
            )
        if stage < len(self._spans) - 1:
            for piece in overlaps(samples, self._spans[stage + 1]):
                part = _part(output.detach(), samples, piece.samples)
                self._send(piece, part, stage, header=True)
        return _MicroBatch(received, output)

    def _backward(self, stage: int, samples: range, batch: _MicroBatch) -> None:
        gradient = None
        if stage < len(self._spans) - 1:
            gradient = torch.empty_like(batch.result)
            for piece in overlaps(samples, self._spans[stage + 1]):
                part = _part(gradient, samples, piece.samples)
                part.copy_(self._receive(piece, part.shape, part.dtype, stage, backward=True))
        if batch.result.requires_grad:
            batch.result.backward(gradient)
        if batch.received is not None:
            own = batch.received.grad
            own = torch.zeros_like(batch.received) if own is None else own
            for piece in overlaps(samples, self._spans[stage - 1]):
                self._send(piece, _part(own, samples, piece.samples), stage - 1)

    def _receive_output(self, stage: int, samples: range) -> Tensor:
        pieces = []
        for piece in overlaps(samples, self._spans[stage - 1]):
            if piece.rank == self._rank:
                pieces.append(self._local.pop((stage - 1, piece.samples.start)))
                continue
            header = torch.empty(_MAX_DIMENSIONS + 2, dtype=torch.int64, device=self._device)
            self._wait(dist.irecv(header, piece.rank, tag=self._tag(stage - 1, piece, 1)), piece)
            dimensions, dtype, *shape = header.tolist()
            pieces.append(
                self._receive(piece, tuple(shape[:dimensions]), _DTYPES[dtype], stage - 1)
            )
        return torch.cat(pieces).requires_grad_()

    def _receive(
        self,
        piece: Piece,
        shape: Sequence[int],
        dtype: torch.dtype,
        boundary: int,
        *,
        backward: bool = False,
    ) -> Tensor:
        if piece.rank == self._rank:
            return self._local.pop((boundary, piece.samples.start))
        received = torch.empty(tuple(shape), dtype=dtype, device=self._device)
        tag = self._tag(boundary, piece, 2 if backward else 0)
        self._wait(dist.irecv(received, piece.rank, tag=tag), piece)
        return received

    def _send(self, piece: Piece, part: Tensor, boundary: int, *, header: bool = False) -> None:
        """Start to send ``part``; outputs are preceded by their shape and dtype."""
        if piece.rank == self._rank:
            self._local[boundary, piece.samples.start] = part.clone()
            return
        if header:
            if part.dtype not in _DTYPES or part.dim() > _MAX_DIMENSIONS:
                raise InvalidValue(f"the output of stage {boundary}", why=_describe(part))
            padding = [0] * (_MAX_DIMENSIONS - part.dim())
            numbers = [part.dim(), _DTYPES.index(part.dtype), *part.shape, *padding]
            self._start_send(torch.tensor(numbers, device=self._device), boundary, piece, 1)
        self._start_send(part.to(self._device).contiguous(), boundary, piece, 0 if header else 2)

    def _start_send(self, tensor: Tensor, boundary: int, piece: Piece, kind: int) -> None:
        work = dist.isend(tensor, piece.rank, tag=self._tag(boundary, piece, kind))
        if work is not None:
            self._sends.append((work, tensor))  # keeps the tensor until it is sent

    def _tag(self, boundary: int, piece: Piece, kind: int) -> int:
        """Return a tag that is unique in a step: 0 output, 1 its header, 2 gradient."""
        return (boundary * self.config.batch + piece.samples.start) * 3 + kind

    def _wait(self, work: dist.Work | None, piece: Piece | None = None) -> None:
        try:
            if work is not None:
                work.wait(timedelta(seconds=self._limit_s))
        except RuntimeError as error:
            peer = "a rank of another stage" if piece is None else f"rank {piece.rank}"
            why = f"within {format_duration(self._limit_s)} it did not complete: {error}"
            raise CollectiveFailed(f"the pipeline's exchange with {peer}", why=why) from error

    def _finish_sends(self) -> None:
        for work, _ in self._sends:
            self._wait(work)
        self._sends.clear()

    def _sum_gradients(self) -> None:
        """Sum the gradients of each stage over its ranks, as one flat tensor of each dtype."""
        for stage, module in self.stages.items():
            group = self._groups.get(stage)
            by_dtype: dict[torch.dtype, list[Tensor]] = {}
            for parameter in module.parameters():
                if parameter.requires_grad and group is not None:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    by_dtype.setdefault(parameter.dtype, []).append(parameter.grad)
            for gradients in by_dtype.values():
                flat = torch.cat([gradient.flatten() for gradient in gradients])
                all_reduce(flat, group=group, timeout=self._timeout)
                summed = flat.split([gradient.numel() for gradient in gradients])
                for gradient, part in zip(gradients, summed, strict=True):
                    gradient.copy_(part.view_as(gradient))

    def _create_groups(self) -> dict[int, dist.ProcessGroup]:
        """Create the group of each stage of several ranks, on all ranks in the same order."""
        backend, limits = dist.get_backend(), {"default": _GROUP_LIMIT}
        groups = {}
        for stage, spans in enumerate(self._spans):
            if len(spans) > 1:
                name = f"holdfast/pipeline/stage{stage}/{'-'.join(map(str, spans))}"
                group = create_group(backend, tuple(spans), name, _CREATION_LIMIT_S, limits)
                if group is not None:
                    groups[stage] = group
        return groups

    def _share_first(self, stage: int, tensor: Tensor) -> None:
        if stage in self._groups:
            first = min(self._spans[stage])
            broadcast(tensor, first, self._groups[stage], timeout=self._timeout)

    def _autocast(self, device: str) -> AbstractContextManager[object]:
        group = next(each for each in self.config.groups if self._rank in each.ranks)
        if group.precision == "bf16":
            return torch.autocast(device, torch.bfloat16)
        return nullcontext()


def _part(tensor: Tensor, samples: range, part: range) -> Tensor:
    return tensor[part.start - samples.start : part.stop - samples.start]


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} of {value.dtype}"
    return type(value).__name__


def _check_sizes(name: str, values: Sequence[Any], samples: Sequence[range]) -> None:
    sizes = [len(value) if hasattr(value, "__len__") else None for value in values]
    needed = [len(each) for each in samples]
    if len(sizes) != len(needed) or any(
        size is not None and size != need for size, need in zip(sizes, needed, strict=True)
    ):
        raise InvalidValue(
            f"the pipeline's {name}",
            why=f"this rank has micro-batches of {needed} samples, not of {sizes}",
        )

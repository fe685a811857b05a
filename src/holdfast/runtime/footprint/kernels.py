"""Operations that a GPU does in one kernel, and a CPU, where the fake tensors are, in several that keep more.

Emulated are shapes and what is kept for backward: of root-mean-square norms (aten/src/ATen/native/layer_norm.cpp,
``_fused_rms_norm``), of dropout (a byte a mask: ``native_dropout``), and of attention with dropout, which in flash
attention keeps the random state alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from holdfast.plan.setup import Setup


class _FusedNorm(torch.autograd.Function):
    """Shapes of a root-mean-square norm in one kernel: it keeps its input, and a number in fp32 for each row."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor | None, dims: int) -> Tensor:
        """The result; ``dims``: how many dimensions are normed."""
        ctx.save_for_backward(given, weight, given.new_empty(given.shape[:-dims], dtype=torch.float32))
        return torch.empty_like(given)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of input and weight."""
        given, weight, _rows = ctx.saved_tensors
        return torch.empty_like(given), None if weight is None else torch.empty_like(weight), None


def _norm(given: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Tensor:  # noqa: ARG001
    return _FusedNorm.apply(given, weight, len(normalized_shape))  # type: ignore[no-any-return, no-untyped-call]


def _dropout(given: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: ARG001, FBT001, FBT002
    return torch.native_dropout(given, p, train=True)[0] if training and p > 0 else given


_attend = functional.scaled_dot_product_attention


def _attention(*args: Any, **more: Any) -> Tensor:
    if len(args) > 4:
        args = (*args[:4], 0.0, *args[5:])
    more.pop("dropout_p", None)
    return _attend(*args, **more)


@contextmanager
def as_on_a_gpu(setup: Setup) -> Iterator[None]:
    """Whatever looks these functions up in ``torch.nn.functional`` while this lasts is given others.

    So the user's module is imported within: it may import one by name.
    """
    changes: dict[str, Any] = {"dropout": _dropout}
    if setup.fused_norms:
        changes["rms_norm"] = _norm
    if setup.flash:
        changes["scaled_dot_product_attention"] = _attention
    before = {name: getattr(functional, name) for name in changes}
    with nullcontext() if setup.flash else sdpa_kernel(SDPBackend.MATH):
        for name, change in changes.items():
            setattr(functional, name, change)
        try:
            yield
        finally:
            for name, change in before.items():
                setattr(functional, name, change)

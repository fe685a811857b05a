"""Emulate operations that a GPU runs in one kernel, and the CPU of fake tensors in several.

Emulated are shapes and saved tensors of root-mean-square norms
(aten/src/ATen/native/layer_norm.cpp, ``_fused_rms_norm``), of dropout (a byte per mask element:
``native_dropout``), and of attention with dropout, for which flash attention saves only the random
state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from holdfast.plan.setup import TrainingSetup


class _FusedNorm(torch.autograd.Function):
    """Shapes of a fused RMS norm: it saves its input and an fp32 number per row."""

    @staticmethod
    def forward(ctx: Any, input_: Tensor, weight: Tensor | None, dims: int) -> Tensor:
        """Return the result; ``dims``: number of normalized dimensions."""
        ctx.save_for_backward(
            input_, weight, input_.new_empty(input_.shape[:-dims], dtype=torch.float32)
        )
        return torch.empty_like(input_)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of input and weight."""
        input_, weight, _rows = ctx.saved_tensors
        return torch.empty_like(input_), None if weight is None else torch.empty_like(weight), None


def _norm(
    input_: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    eps: float | None = None,  # noqa: ARG001
) -> Tensor:
    return _FusedNorm.apply(input_, weight, len(normalized_shape))  # type: ignore[no-any-return, no-untyped-call]


def _dropout(
    input_: Tensor,
    p: float = 0.5,
    training: bool = True,  # noqa: FBT001, FBT002
    inplace: bool = False,  # noqa: ARG001, FBT001, FBT002
) -> Tensor:
    return torch.native_dropout(input_, p, train=True)[0] if training and p > 0 else input_


_original_attention = functional.scaled_dot_product_attention


def _attention(*args: Any, **options: Any) -> Tensor:
    if len(args) > 4:
        args = (*args[:4], 0.0, *args[5:])
    options.pop("dropout_p", None)
    return _original_attention(*args, **options)


@contextmanager
def emulate_gpu_kernels(setup: TrainingSetup) -> Iterator[None]:
    """Replace functions of ``torch.nn.functional`` within the context.

    Import the user's module within it, as it may import a function by name.
    """
    replacements: dict[str, Any] = {"dropout": _dropout}
    if setup.fused_norms:
        replacements["rms_norm"] = _norm
    if setup.flash:
        replacements["scaled_dot_product_attention"] = _attention
    originals = {name: getattr(functional, name) for name in replacements}
    with nullcontext() if setup.flash else sdpa_kernel(SDPBackend.MATH):
        for name, function in replacements.items():
            setattr(functional, name, function)
        try:
            yield
        finally:
            for name, function in originals.items():
                setattr(functional, name, function)

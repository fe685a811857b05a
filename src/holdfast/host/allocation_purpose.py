"""Classifies GPU memory by the stack that allocated it, innermost frame first.

The class only reflects the code location: frames of torch's optimizers allocate optimizer state,
those of a module's forward activations. Allocations of backward have no Python frames, because
autograd runs it on a separate thread (pytorch/pytorch#82146); they are classified by C++ frames if
those were recorded, else not at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.host.processes.user_code import innermost_user_frame, is_user_file


class AllocationPurpose(StrEnum):
    """What memory is used for. ``UNKNOWN``: no frames, or none that indicates the purpose."""

    PARAMETERS = "parameters"
    LOADED = "loaded from files"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    ACTIVATIONS = "activations"
    LOSS = "logits and loss"
    GATHERED = "gathered parameters"
    BUCKETS = "buckets of communication"
    BACKWARD = "backward"
    UNKNOWN = "unknown"


def purpose_of(frames: Sequence[SourceLine]) -> AllocationPurpose:
    """Return the purpose of memory allocated by ``frames``: the first matching table row."""
    text = "\n".join(f"{frame.file}:{frame.function}" for frame in frames)
    return next(
        (kind for kind, pattern in _PATTERNS if pattern.search(text)), AllocationPurpose.UNKNOWN
    )


def allocation_site(frames: Sequence[SourceLine]) -> SourceLine | None:
    """Return the relevant line: of the user's files, else of the innermost installed package."""
    return innermost_user_frame(ThreadStack(tuple(frames)))


def is_user_frame(line: SourceLine | None) -> bool:
    """Return whether the line is in a file of the user."""
    return line is not None and is_user_file(line.file)


#: Rows in order of precedence: an optimizer step may run inside a backward hook, and a gather
#: inside forward. The matched text has one "file:function" per line.
_PATTERNS: tuple[tuple[AllocationPurpose, re.Pattern[str]], ...] = tuple(
    (kind, re.compile("|".join(expressions), re.MULTILINE))
    for kind, *expressions in (
        (
            AllocationPurpose.OPTIMIZER,
            r"/torch/optim/[\w./]*:(?!zero_grad$)",
            r"/(?:apex|transformer_engine)/[\w/]*optimizers/",
            r"/bitsandbytes/optim/",
            r"/deepspeed/ops/(?:adam|lamb|lion)/",
            r":initialize_optimizer_states$",
        ),
        (
            AllocationPurpose.GATHERED,
            r":(?:foreach_all_gather|all_gather_copy_in\w*|init_all_gather_outputs|unshard)$",
            r":alloc_all_gather_outputs$",
            r":_alloc_padded_unsharded_flat_param$",
            r":_all_gather_flat_param$",
            r":_?all_?gather_(?:params?|coalesced|sequential|dtype)$",
            r":_allgather_params?\w*$",
        ),
        (
            AllocationPurpose.BUCKETS,
            r":(?:foreach_reduce|reduce_scatter_copy_in|_ddp_init_helper|_reduce_grad|allreduce_bucket)$",
            r":__reduce_and_partition_ipg_grads$",
            r":average_tensor$",
        ),
        (AllocationPurpose.GRADIENTS, r"AccumulateGrad"),
        (
            AllocationPurpose.BACKWARD,
            r"torch::autograd::(?:python::Python)?Engine::",
            r":_engine_run_backward$",
            r"/torch/autograd/__init__\.py:(?:backward|_make_grads)$",
            r"/torch/autograd/function\.py:apply$",
        ),
        (
            AllocationPurpose.LOSS,
            r":(?:cross_entropy|nll_loss|log_softmax|linear_cross_entropy|binary_cross_entropy\w*)$",
            r":(?:ForCausalLMLoss|fixed_cross_entropy|compute_loss|loss_fn)$",
            r"/torch/nn/modules/loss\.py:",
        ),
        (
            AllocationPurpose.LOADED,
            r"/torch/serialization\.py:",
            r"/torch/distributed/checkpoint/",
            r"/safetensors/",
            r":(?:load_state_dict|_load_from_state_dict|_load_state_dict_into_meta_model)$",
        ),
        (
            AllocationPurpose.ACTIVATIONS,
            r"/torch/nn/modules/module\.py:_(?:wrapped_)?call_impl$",
            r":forward$",
        ),
        (
            AllocationPurpose.PARAMETERS,
            r"/torch/nn/modules/module\.py:(?:_apply|to|cuda|to_empty|convert)$",
            r":reset_parameters$",
            r"/torch/nn/parameter\.py:",
            r"/torch/nn/modules/\w+\.py:__init__$",
            r":from_pretrained$",
        ),
    )
)

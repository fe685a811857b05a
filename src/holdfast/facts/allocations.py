"""What a piece of GPU memory is for, as the Python frames tell that asked for it: innermost first.

A fact of where code stood, no more: a frame of torch's optimizers makes the optimizer's numbers, one of a module's
forward makes activations. What backward allocates has no Python frames, because autograd runs it on a thread of its own
(pytorch/pytorch#82146), and is told by frames of C++ where those were recorded, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

from holdfast.facts.ranks import Place, Stack
from holdfast.facts.user_code import innermost_user, is_own


class Use(StrEnum):
    """What memory is for. ``UNTOLD``: it has no frames, or none that tells."""

    PARAMETERS = "parameters"
    LOADED = "loaded from files"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    ACTIVATIONS = "activations"
    LOSS = "logits and loss"
    GATHERED = "gathered parameters"
    BUCKETS = "buckets of communication"
    BACKWARD = "backward"
    UNTOLD = "untold"


def use(frames: Sequence[Place]) -> Use:
    """What memory is for that was asked for by ``frames``; each row of the table is asked of all frames in turn."""
    text = "\n".join(f"{frame.file}:{frame.function}" for frame in frames)
    return next((kind for kind, pattern in _TOLD if pattern.search(text)), Use.UNTOLD)


def site(frames: Sequence[Place]) -> Place | None:
    """The line that a person looks for: of the user's own files, else of the innermost installed package."""
    return innermost_user(Stack(tuple(frames)))


def is_users(place: Place | None) -> bool:
    """True for a line of the user's own."""
    return place is not None and is_own(place.file)


#: Rows in the order in which they are believed: an optimizer's step may stand inside a hook of backward, and a gather
#: inside forward. Each text is "file:function" a line.
_TOLD: tuple[tuple[Use, re.Pattern[str]], ...] = tuple(
    (kind, re.compile("|".join(expressions), re.MULTILINE))
    for kind, *expressions in (
        (Use.OPTIMIZER, r"/torch/optim/[\w./]*:(?!zero_grad$)", r"/(?:apex|transformer_engine)/[\w/]*optimizers/",
         r"/bitsandbytes/optim/", r"/deepspeed/ops/(?:adam|lamb|lion)/", r":initialize_optimizer_states$"),
        (Use.GATHERED, r":(?:foreach_all_gather|all_gather_copy_in\w*|init_all_gather_outputs|unshard)$",
         r":alloc_all_gather_outputs$", r":_alloc_padded_unsharded_flat_param$", r":_all_gather_flat_param$",
         r":_?all_?gather_(?:params?|coalesced|sequential|dtype)$", r":_allgather_params?\w*$"),
        (Use.BUCKETS, r":(?:foreach_reduce|reduce_scatter_copy_in|_ddp_init_helper|_reduce_grad|allreduce_bucket)$",
         r":__reduce_and_partition_ipg_grads$", r":average_tensor$"),
        (Use.GRADIENTS, r"AccumulateGrad"),
        (Use.BACKWARD, r"torch::autograd::(?:python::Python)?Engine::", r":_engine_run_backward$",
         r"/torch/autograd/__init__\.py:(?:backward|_make_grads)$",
         r"/torch/autograd/function\.py:apply$"),
        (Use.LOSS, r":(?:cross_entropy|nll_loss|log_softmax|linear_cross_entropy|binary_cross_entropy\w*)$",
         r":(?:ForCausalLMLoss|fixed_cross_entropy|compute_loss|loss_fn)$", r"/torch/nn/modules/loss\.py:"),
        (Use.LOADED, r"/torch/serialization\.py:", r"/torch/distributed/checkpoint/", r"/safetensors/",
         r":(?:load_state_dict|_load_from_state_dict|_load_state_dict_into_meta_model)$"),
        (Use.ACTIVATIONS, r"/torch/nn/modules/module\.py:_(?:wrapped_)?call_impl$", r":forward$"),
        (Use.PARAMETERS, r"/torch/nn/modules/module\.py:(?:_apply|to|cuda|to_empty|convert)$", r":reset_parameters$",
         r"/torch/nn/parameter\.py:", r"/torch/nn/modules/\w+\.py:__init__$", r":from_pretrained$"),
    )
)  # fmt: skip

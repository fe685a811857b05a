"""Shard a module by a strategy and run its training step on fake tensors, moment by moment.

Everything is on a CPU mesh of torch's fake process group: collectives do nothing, and tensors have
only shapes. Selective checkpointing saves what torchtitan saves
(torchtitan/models/llama3/infra/parallelize.py, "selective op"): attention, and every second matrix
product.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from holdfast.plan.setup import (
    ActivationCheckpointing,
    OptimizerKind,
    ShardingStrategy,
    TrainingSetup,
)
from holdfast.plan.torch_tracing.loading import StepFunction
from holdfast.plan.torch_tracing.repeated_layers import get_layers
from holdfast.plan.torch_tracing.tracking import PeakRecorder, TorchInternals

FORWARD, LOSS, BACKWARD, END, STEP = "forward", "loss", "backward", "end", "step"
_DTYPES = {2: torch.bfloat16, 4: torch.float32}


@contextmanager
def fake_process_group(internals: TorchInternals, setup: TrainingSetup) -> Iterator[DeviceMesh]:
    """Create a group of all ranks, of which only the first exists; the mesh has real tensors."""
    torch.distributed.init_process_group(
        "fake", rank=0, world_size=setup.world_size, store=internals.fake_store()
    )
    replicas, shards = setup.replicas, setup.data // setup.replicas
    try:
        if replicas == 1:
            yield init_device_mesh("cpu", (shards,))
        else:
            yield init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))
    finally:
        torch.distributed.destroy_process_group()


def prepare_module(
    internals: TorchInternals,
    mesh: DeviceMesh,
    module: nn.Module,
    path: str | None,
    setup: TrainingSetup,
) -> AbstractContextManager[object]:
    """Checkpoint and shard the module layer by layer; return the context of its forward."""
    precision = setup.precision
    is_fsdp2 = setup.strategy is ShardingStrategy.FSDP2
    if not precision.master:
        dtype = _DTYPES[precision.compute]
        replace_tensors(
            module,
            lambda weight: weight.detach().to(dtype) if weight.is_floating_point() else weight,
        )
    if path is not None:
        _checkpoint_layers(internals, get_layers(module, path), setup.recompute)
    if not is_fsdp2:
        mixed = bool(precision.master) and precision.compute == 2
        return torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext()
    policy = MixedPrecisionPolicy(_DTYPES[precision.compute], _DTYPES[precision.reduced])
    # By default, the outermost module's weights stay gathered after forward.
    options = {} if setup.reshard else {"reshard_after_forward": False}
    shard_layer = partial(fully_shard, mesh=mesh, mp_policy=policy, **options)
    for layer in get_layers(module, path) if path is not None else ():
        shard_layer(layer)
    shard_layer(module)
    return nullcontext()


def replace_tensors(module: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Replace weights and buffers by ``make``'s results; tied ones stay tied.

    ``Module.to_empty`` would untie them.
    """
    replacements: dict[Tensor, Tensor] = {}

    def replacement(tensor: Tensor) -> Tensor:
        if tensor not in replacements:
            new_tensor = make(tensor)
            replacements[tensor] = (
                nn.Parameter(new_tensor, tensor.requires_grad)
                if isinstance(tensor, nn.Parameter)
                else new_tensor
            )
        return replacements[tensor]

    for submodule in module.modules():
        for name, weight in [
            *submodule.named_parameters(recurse=False),
            *submodule.named_buffers(recurse=False),
        ]:
            setattr(submodule, name, replacement(weight))


def _checkpoint_layers(
    internals: TorchInternals, layers: nn.ModuleList | nn.Sequential, level: ActivationCheckpointing
) -> None:
    if level in (
        ActivationCheckpointing.NONE,
        ActivationCheckpointing.SELECTIVE,
    ):  # flash attention never saves scores
        return
    options: dict[str, Any] = {}
    if level is ActivationCheckpointing.OPERATIONS:
        options = {"context_fn": _save_every_second_product}
    for index, layer in enumerate(layers):
        if level is not ActivationCheckpointing.SECOND_LAYER or not index % 2:
            layers[index] = internals.wrap_checkpoint(layer, preserve_rng_state=False, **options)


def _save_every_second_product() -> Any:
    aten = torch.ops.aten
    products = {aten.mm.default, aten.addmm.default}
    attention = {
        getattr(aten, name).default
        for name in (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention",
            "_scaled_dot_product_efficient_attention",
        )
    }
    counts = {False: 0, True: 0}

    def policy(context: Any, func: Any, *_: Any, **__: Any) -> CheckpointPolicy:
        if func in products:
            counts[context.is_recompute] += 1
            is_saved = bool(counts[context.is_recompute] % 2)
        else:
            is_saved = func in attention
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def make_optimizer(module: nn.Module, setup: TrainingSetup) -> torch.optim.Optimizer:
    """Create the setup's optimizer with its states, as from the second step on."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    options: dict[str, Any] = {"fused": True} if setup.fused_optimizer else {"foreach": True}
    optimizer: torch.optim.Optimizer
    match setup.optimizer:
        case OptimizerKind.SGD:
            optimizer = torch.optim.SGD(weights, lr=1e-3, **options)
        case OptimizerKind.MOMENTUM:
            optimizer = torch.optim.SGD(weights, lr=1e-3, momentum=0.9, **options)
        case _:
            optimizer = torch.optim.AdamW(weights, **options)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def make_ddp_buckets(module: nn.Module, setup: TrainingSetup) -> list[Tensor]:
    """Return tensors as large as the buckets of DDP's reducer.

    The reducer is C++ and needs real memory.
    """
    if setup.strategy is not ShardingStrategy.DDP or setup.data == 1:
        return []
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    buckets = [torch.empty_like(weight) for weight in weights]
    if setup.bucket_views:
        for weight, view in zip(weights, buckets, strict=True):
            weight.register_post_accumulate_grad_hook(partial(_set_gradient_view, view))
    return buckets


def _set_gradient_view(view: Tensor, weight: Tensor) -> None:
    weight.grad = view


def track_moments(module: nn.Module, path: str | None, peaks: PeakRecorder) -> None:
    """Detect the moments by the layers, so that a peak's moment does not depend on depth.

    The loss ends when the last layer's backward begins; the end of backward begins with the second
    layer's.
    """
    if path is None or len(layers := get_layers(module, path)) < 3:
        return

    def on_gradient(moment: str, layer: nn.Module) -> None:
        def after_forward(_: nn.Module, __: Any, output: Any) -> None:
            tensor = output[0] if isinstance(output, (tuple, list)) else output
            if (
                isinstance(tensor, Tensor)
                and tensor.requires_grad
                and peaks.moment in (FORWARD, LOSS)
            ):
                tensor.register_hook(lambda _: setattr(peaks, "moment", moment))

        layer.register_forward_hook(after_forward)

    def after_last_forward(*_: Any) -> None:
        if peaks.moment == FORWARD:
            peaks.moment = LOSS

    layers[-1].register_forward_hook(after_last_forward)
    on_gradient(BACKWARD, layers[-1])
    on_gradient(END, layers[1])


def make_default_step(module: nn.Module) -> StepFunction:
    """Return a step for a module that takes token ids, with its own loss or cross-entropy.

    The module's loss is used if it takes ``labels`` or ``targets``; cross-entropy is over all next
    tokens, in fp32, op by op.
    """
    parameters = set(inspect.signature(module.forward).parameters)
    options: dict[str, Any] = {"use_cache": False} if "use_cache" in parameters else {}
    label = next((name for name in ("labels", "targets") if name in parameters), None)

    def step(model: nn.Module, micro_batch: int, sequence: int) -> Tensor:
        tokens = torch.zeros(micro_batch, sequence, dtype=torch.long)
        if label is not None:
            return _extract_loss(model(tokens, **{label: tokens}, **options))
        output = model(tokens, **options)
        output = getattr(output, "logits", output)
        return nn.functional.cross_entropy(output.flatten(0, 1).float(), tokens.flatten())

    return step


def _extract_loss(output: Any) -> Tensor:
    """Return the loss attribute, or the only scalar of the output."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    for item in output if isinstance(output, (tuple, list)) else (output,):
        if isinstance(item, Tensor) and not item.dim():
            return item
    raise ValueError("its forward returns no loss: return a step function beside the module")


def run_step(
    forward: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    peaks: PeakRecorder,
    micro_batches: int,
    reset: Callable[[], None],
) -> None:
    """Run micro-batches and an optimizer step."""
    for _ in range(micro_batches):
        peaks.moment = FORWARD
        forward().backward()
        reset()
    peaks.moment = STEP
    optimizer.step()

"""Puts a module under a strategy and runs its training step on fake tensors, a moment at a time.

Everything is on a CPU mesh of torch's fake process group: collectives do nothing, and tensors have shapes alone.
Recomputation of operations keeps what torchtitan keeps (torchtitan/models/llama3/infra/parallelize.py, "selective op"):
attention, and of matrix products every second one.
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

from holdfast.plan.setup import Optimizer, Recompute, Setup, Strategy
from holdfast.runtime.footprint.loading import Step
from holdfast.runtime.footprint.stacks import layers_at
from holdfast.runtime.footprint.tracking import Interfaces, Peaks

FORWARD, LOSS, BACKWARD, END, STEP = "forward", "loss", "backward", "end", "step"
_TYPES = {2: torch.bfloat16, 4: torch.float32}


@contextmanager
def fake_world(names: Interfaces, setup: Setup) -> Iterator[DeviceMesh]:
    """A group of all ranks, of which this is the first and the only one there is; the mesh is made of real numbers."""
    torch.distributed.init_process_group("fake", rank=0, world_size=setup.world_size, store=names.fake_store())
    replicas, shards = setup.replicas, setup.data // setup.replicas
    try:
        if replicas == 1:
            yield init_device_mesh("cpu", (shards,))
        else:
            yield init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))
    finally:
        torch.distributed.destroy_process_group()


def prepare(
    names: Interfaces, mesh: DeviceMesh, module: nn.Module, path: str | None, setup: Setup
) -> AbstractContextManager[object]:
    """Checkpoint and shard it, layer by layer of the row at ``path``; what its forward has to run in."""
    form = setup.precision
    sharded = setup.strategy is Strategy.FSDP2
    if not form.master:
        wanted = _TYPES[form.compute]
        replace(module, lambda weight: weight.detach().to(wanted) if weight.is_floating_point() else weight)
    if path is not None:
        _checkpoint(names, layers_at(module, path), setup.recompute)
    if not sharded:
        mixed = bool(form.master) and form.compute == 2
        return torch.autocast("cpu", torch.bfloat16) if mixed else nullcontext()
    policy = MixedPrecisionPolicy(_TYPES[form.compute], _TYPES[form.reduced])
    # Left alone, the outermost module's own weights stay after forward.
    kept = {} if setup.reshard else {"reshard_after_forward": False}
    shard = partial(fully_shard, mesh=mesh, mp_policy=policy, **kept)
    for layer in layers_at(module, path) if path is not None else ():
        shard(layer)
    shard(module)
    return nullcontext()


def replace(module: nn.Module, make: Callable[[Tensor], Tensor]) -> None:
    """Weights and buffers by what ``make`` gives for them; what was tied stays so, which ``Module.to_empty`` undoes."""
    new: dict[Tensor, Tensor] = {}

    def made(before: Tensor) -> Tensor:
        if before not in new:
            after = make(before)
            new[before] = nn.Parameter(after, before.requires_grad) if isinstance(before, nn.Parameter) else after
        return new[before]

    for each in module.modules():
        for name, weight in [*each.named_parameters(recurse=False), *each.named_buffers(recurse=False)]:
            setattr(each, name, made(weight))


def _checkpoint(names: Interfaces, layers: nn.ModuleList | nn.Sequential, way: Recompute) -> None:
    if way in (Recompute.NONE, Recompute.SELECTIVE):  # the scores of a flash attention are never kept
        return
    more: dict[str, Any] = {}
    if way is Recompute.OPERATIONS:
        more = {"context_fn": _every_second_product}
    for place, layer in enumerate(layers):
        if way is not Recompute.SECOND_LAYER or not place % 2:
            layers[place] = names.wrap_checkpoint(layer, preserve_rng_state=False, **more)


def _every_second_product() -> Any:
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
            kept = bool(counts[context.is_recompute] % 2)
        else:
            kept = func in attention
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def optimizer(module: nn.Module, setup: Setup) -> torch.optim.Optimizer:
    """The setup's, with its states already there, as from the second step on."""
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    ways: dict[str, Any] = {"fused": True} if setup.fused_optimizer else {"foreach": True}
    found: torch.optim.Optimizer
    match setup.optimizer:
        case Optimizer.SGD:
            found = torch.optim.SGD(weights, lr=1e-3, **ways)
        case Optimizer.MOMENTUM:
            found = torch.optim.SGD(weights, lr=1e-3, momentum=0.9, **ways)
        case _:
            found = torch.optim.AdamW(weights, **ways)
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    found.step()
    found.zero_grad()
    return found


def buckets(module: nn.Module, setup: Setup) -> list[Tensor]:
    """What DDP's reducer would keep: it is C++ that reads real memory, so tensors of the same size stand for it."""
    if setup.strategy is not Strategy.DDP or setup.data == 1:
        return []
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    found = [torch.empty_like(weight) for weight in weights]
    if setup.bucket_views:
        for weight, view in zip(weights, found, strict=True):
            weight.register_post_accumulate_grad_hook(partial(_take_view, view))
    return found


def _take_view(view: Tensor, weight: Tensor) -> None:
    weight.grad = view


def follow(module: nn.Module, path: str | None, peaks: Peaks) -> None:
    """Tell moments by the layers: where a peak stands must not depend on depth, or it could not be extrapolated.

    The loss ends where the last layer's backward begins; the end of backward begins with the second layer's.
    """
    if path is None or len(layers := layers_at(module, path)) < 3:
        return

    def at_gradient(moment: str, of: nn.Module) -> None:
        def ran(_: nn.Module, __: Any, output: Any) -> None:
            first = output[0] if isinstance(output, (tuple, list)) else output
            if isinstance(first, Tensor) and first.requires_grad and peaks.moment in (FORWARD, LOSS):
                first.register_hook(lambda _: setattr(peaks, "moment", moment))

        of.register_forward_hook(ran)

    def last_ran(*_: Any) -> None:
        if peaks.moment == FORWARD:
            peaks.moment = LOSS

    layers[-1].register_forward_hook(last_ran)
    at_gradient(BACKWARD, layers[-1])
    at_gradient(END, layers[1])


def default_step(module: nn.Module) -> Step:
    """Of a module that takes token ids: its own loss where it takes ``labels`` or ``targets``, else cross-entropy.

    Cross-entropy is that of all next tokens, in fp32, op by op.
    """
    takes = set(inspect.signature(module.forward).parameters)
    more: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    label = next((name for name in ("labels", "targets") if name in takes), None)

    def step(model: nn.Module, micro_batch: int, sequence: int) -> Tensor:
        tokens = torch.zeros(micro_batch, sequence, dtype=torch.long)
        if label is not None:
            return _loss_of(model(tokens, **{label: tokens}, **more))
        found = model(tokens, **more)
        found = getattr(found, "logits", found)
        return nn.functional.cross_entropy(found.flatten(0, 1).float(), tokens.flatten())

    return step


def _loss_of(found: Any) -> Tensor:
    """A loss attribute, or the one number among what is returned."""
    loss = getattr(found, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    for each in found if isinstance(found, (tuple, list)) else (found,):
        if isinstance(each, Tensor) and not each.dim():
            return each
    raise ValueError("its forward returns no loss: give a step beside the module")


def run(
    forward: Callable[[], Tensor], adjust: torch.optim.Optimizer, peaks: Peaks, times: int, reset: Callable[[], None]
) -> None:
    """So many micro-batches and a step of the optimizer."""
    for _ in range(times):
        peaks.moment = FORWARD
        forward().backward()
        reset()
    peaks.moment = STEP
    adjust.step()

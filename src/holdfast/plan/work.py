"""What a rank computes: a micro-batch's forward, backward and what is computed again, and the optimizer's step."""

from __future__ import annotations

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.gpus import Dtype, Gpu
from holdfast.plan.models import Transformer
from holdfast.plan.rates import Conditions, Rates, attention
from holdfast.plan.setup import Loss, Offload, Optimizer, Recompute, Setup, Strategy
from holdfast.plan.traffic import GATHERING, counts, shared_params, stage_layers


class Work(msgspec.Struct, frozen=True, gc=False):
    """Seconds of a micro-batch: forward, backward, and what is computed again.

    ``again_share``: of forward's operations, those that are computed again.
    """

    forward: float
    backward: float
    again: float
    again_share: float


def dtype(setup: Setup, gpu: Gpu, given: Conditions) -> Dtype:
    """Of the layers' products.

    Raises:
        BadValue: the GPU has no units for it.
    """
    if given.float8:
        wanted = Dtype.FP8
    elif setup.precision.compute >= 4:
        wanted = Dtype.TF32 if gpu.tf32 else Dtype.FP32
    else:
        wanted = gpu.half
    if not gpu.peak(wanted):
        raise BadValue(f"{wanted} on {gpu.name}", why="it has no units for it")
    return wanted


def micro_batch(model: Transformer, setup: Setup, gpu: Gpu, given: Conditions) -> Work:
    """All of a micro-batch on the fullest stage."""
    rates, tensor = given.rates, setup.tensor
    tokens = setup.micro_batch * setup.sequence / setup.context
    wanted = dtype(setup, gpu, given)
    half = gpu.half if setup.precision.compute < 4 else wanted
    share = rates.matrix * gpu.matrix_share
    rate = gpu.peak(wanted) * share * (rates.float8 if given.float8 else 1.0)
    small = rates.small / gpu.bandwidth * (1 / tokens + 1 / model.hidden)
    memory = gpu.bandwidth * rates.memory
    inner = rates.small / gpu.bandwidth * tensor / model.ffn
    matrices = 2 * tokens * counts(model).active / tensor * (1 / rate + small + inner)
    core = _core(model, setup, gpu, given, tokens, half)
    moved = _moved(model, setup, rates, tokens) / memory
    host = rates.layer_s * (rates.compiled if setup.compiled else 1.0)
    forward = max(matrices + core + moved, host)
    backward = max(2 * matrices + 2.5 * core + 2 * moved, 2 * host)
    again, again_share = _again(setup, matrices, core, moved, rates)
    head = 2 * tokens * model.vocab * model.hidden / tensor * (1 / (gpu.peak(half) * share) + small)
    left = rates.compiled if setup.compiled or setup.loss is Loss.COMPILED else 1.0
    loss = rates.logit_bytes * left * tokens * model.vocab / tensor / memory
    layers = stage_layers(model, setup)
    if setup.pipeline == 1:
        return Work(layers * forward + head + loss / 3, layers * backward + 2 * head + loss * 2 / 3, layers * again,
                    again_share)  # fmt: skip
    # the last stage has the head, and then fewer layers
    layer = forward + backward + again
    with_head = model.layers / setup.pipeline * layer + (3 * head + loss) / setup.pipeline
    more = layers * max(1.0, with_head / (layers * layer))
    return Work(forward * more, backward * more, again * more, again_share)


def _core(model: Transformer, setup: Setup, gpu: Gpu, given: Conditions, tokens: float, half: Dtype) -> float:
    """Attention's scores, softmax and values of a layer, forward."""
    rates, heads = given.rates, model.heads / setup.tensor
    flops = 4 * tokens * setup.sequence * heads * model.head_width
    if setup.flash:
        if not given.balanced:  # the last of the ranks has whole blocks but for one
            flops *= (2 * setup.context - 1) / setup.context
        return flops / 2 / (gpu.peak(half) * gpu.matrix_share * attention(given.kernel, gpu.capability[0]))
    products = flops / (gpu.peak(half) * gpu.matrix_share * 0.5)
    return products + tokens * setup.sequence * heads * rates.score_bytes / (gpu.bandwidth * rates.memory)


def _moved(model: Transformer, setup: Setup, rates: Rates, tokens: float) -> float:
    """Bytes that norms, residuals, activation functions and casts of a layer move, forward."""
    split = setup.tensor if setup.sequence_parallel else 1
    inner = rates.inner_passes * model.ffn * model.active * (1.5 if model.gated else 1.0) / setup.tensor
    if model.experts > 1:  # a token is copied for each of its experts, sorted by expert, sorted back, and summed up
        inner += (6 * model.active + 2) * model.hidden / split
    if setup.compiled:
        return 2 * tokens * rates.compiled * (rates.hidden_passes * model.hidden / split + inner)
    passes = rates.hidden_passes
    if not (setup.fused_norms or model.norm_bias):
        passes += rates.norm_passes * model.norms_a_layer
    rotary = 0.0 if model.positions else rates.rotary_passes * model.hidden / setup.tensor
    return 2 * tokens * (passes * model.hidden / split + rotary + inner)


def _again(setup: Setup, matrices: float, core: float, moved: float, rates: Rates) -> tuple[float, float]:
    """Seconds of a layer that recomputing adds, and the share of forward's operations."""
    if setup.recompute is Recompute.FULL:
        return rates.again * (matrices + core + moved), 1.0
    if setup.recompute is Recompute.SECOND_LAYER:
        return rates.again * (matrices + core + moved) / 2, 0.5
    if setup.recompute is Recompute.OPERATIONS:
        return matrices / 2 + moved, 0.5
    if setup.recompute is Recompute.SELECTIVE:
        return core, 0.0
    return 0.0, 0.0


#: Bytes a second of a host's memory that one GPU's share of its cores can use.
_HOST = 20e9
#: Numbers that an optimizer keeps for each weight.
_STATES = {Optimizer.SGD: 0.0, Optimizer.MOMENTUM: 1.0, Optimizer.ADAFACTOR: 0.1, Optimizer.MUON: 1.0}


def update(model: Transformer, setup: Setup, gpu: Gpu, given: Conditions) -> float:
    """Seconds of the optimizer's step: states, masters and gradients are read and written."""
    layer, ends = shared_params(model, setup)
    params = (layer * stage_layers(model, setup) + ends) / _owners(setup)
    precision = setup.precision
    state = 1.0 if setup.optimizer is Optimizer.ADAMW_8BIT else precision.state
    states = _STATES.get(setup.optimizer, 2.0) * state
    nbytes = params * (precision.gradient + 2 * precision.master + 2 * states + 2 * precision.compute)
    if setup.offload is Offload.NONE:
        return given.rates.optimizer * nbytes / (gpu.bandwidth * given.rates.memory)
    return nbytes / _HOST + params * (precision.gradient + precision.compute) / gpu.pcie


def _owners(setup: Setup) -> int:
    """Ranks among which the optimizer's states are divided."""
    if setup.strategy is Strategy.DDP:
        return 1
    return setup.shards if setup.strategy in GATHERING else setup.data * setup.context

"""ZeRO-3, as DeepSpeed's engine loads it: two files for each rank, and no rank has a whole parameter.

deepspeed/runtime/zero/stage3.py (``_rigid_state_dict``, ``_rigid_load_state_dict``), engine.py
(``load_module_state_dict``: the frozen parameters come from ``frozen_param_fragments``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.actions.conversion import pickles
from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.files import File, Written
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers.zero import flat, states
from holdfast.actions.conversion.writers.zero.groups import MASTER, Laid, lay
from holdfast.facts.checkpoints.contents import Contents


def write(contents: Contents, options: Options) -> Written:
    """A folder with the tag's folder and ``latest``, for ``options.ranks`` ranks. Raises BadValue."""
    laid = lay(contents, options)
    form, tag = states.form_of(laid, contents, options, stage=3), states.folder(contents, laid, options)
    made = []
    for rank in range(form.ranks):
        made.append(_model(laid, contents, options, f"{tag}/zero_pp_rank_{rank}_mp_rank_00_model_states.pt", rank))
        made.append(_optimizer(laid, contents, form, rank, f"{tag}/{form.optimizer_file(rank)}"))
    losses = [*states.losses(laid, contents), *_scale_lost(contents, form)]
    return Written((*made, File("latest", (tag.encode(),))), tuple(losses))


def _model(laid: Laid, contents: Contents, options: Options, path: str, rank: int) -> File:
    storages, form = Storages(), states.form_of(laid, contents, options, stage=3)
    frozen = {}
    for each in laid.frozen:
        source, dtype = states.weight(each, contents, options)
        parts = flat.whole_share(source, form.ranks, rank, dtype)
        frozen[each.name] = pickles.tensor(storages.storage(parts, dtype), (flat.share(each, form.ranks),))
    shapes = [states.shapes_of(params) for group in laid.groups for params in flat.sub_groups(group, form.ranks)]
    module = states.module(laid, contents, options, storages, placeholders=form.dtype)
    value = states.model_states(laid, contents, form, module, frozen, shapes)
    return states.file(path, value, storages)


def _optimizer(laid: Laid, contents: Contents, form: states.Form, rank: int, path: str) -> File:
    storages = Storages()
    weights, optimizer = _buffers(laid, form.ranks, rank, storages)
    state = {
        "zero_stage": form.stage,
        "loss_scaler": _loss_scaler(contents, form),
        "dynamic_loss_scale": form.dtype == "float16",
        "overflow": False,
        "partition_count": form.ranks,
        "optimizer_state_dict": optimizer,
        "fp32_flat_groups": weights,
    }
    value = {"optimizer_state_dict": state, "ds_config": states.config(form), "ds_version": states.VERSION}
    return states.file(path, value, storages)


def _buffers(laid: Laid, ranks: int, rank: int, storages: Storages) -> tuple[list[Any], dict[str, Any]]:
    """The weights of each sub-group, and the state_dict of torch's optimizer, to which each is one parameter."""
    weights: list[Any] = []
    state: dict[int, Any] = {}
    groups: list[dict[str, Any]] = []
    for group in laid.groups:
        first = len(weights)
        for params in flat.sub_groups(group, ranks):
            size = sum(flat.share(each, ranks) for each in params)
            if group.states:
                state[len(weights)] = states.numbers(group, storages) | {
                    key: _tensor(flat.share_of(params, ranks, rank, source), size, storages)
                    for key, source in group.states.items()
                }
            weights.append(_tensor(flat.share_of(params, ranks, rank), size, storages))
        groups.append(states.param_group(group, list(range(first, len(weights)))))
    return weights, {"state": state, "param_groups": groups if laid.optimizer else []}


def _tensor(parts: flat.Parts, numel: int, storages: Storages) -> pickles.Call:
    return pickles.tensor(storages.storage(parts, MASTER), (numel,))


def _loss_scaler(contents: Contents, form: states.Form) -> Any:
    """Stage 3 takes it from the checkpoint whatever the dtype, and has none if it is not there."""
    if form.dtype == "float16":
        return states.loss_scaler(contents, form) or states.dynamic_scaler({})
    return pickles.instance(pickles.named(states.SCALERS, "LossScaler"), {"cur_scale": 1.0, "dynamic": False})


def _scale_lost(contents: Contents, form: states.Form) -> Iterator[str]:
    if form.dtype == "float16" and states.loss_scaler(contents, form) is None:
        yield f"The source has no loss scale: that of fp16 begins anew, at {states.FIRST_SCALE:,.0f}."

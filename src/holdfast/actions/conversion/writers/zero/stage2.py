"""ZeRO-2, as DeepSpeed's engine loads it: the whole model in one file, the optimizer's parts in one for each rank.

deepspeed/runtime/zero/stage_1_and_2.py (``state_dict``, ``_load_legacy_checkpoint``). Frozen parameters are told of in
stage 1, too, where DeepSpeed itself leaves them out and zero_to_fp32 then loses them.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from holdfast.actions.conversion import pickles
from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.files import File, Written
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers.zero import flat, states
from holdfast.actions.conversion.writers.zero.groups import MASTER, FlatGroup, Laid, lay
from holdfast.facts.checkpoints.contents import Contents

_ADDRESS = pickles.named("deepspeed.utils.tensor_fragment", "fragment_address")


def write(contents: Contents, options: Options) -> Written:
    """A folder with the tag's folder and ``latest``, for ``options.ranks`` ranks. Raises BadValue."""
    return files(contents, options, stage=2)


def files(contents: Contents, options: Options, stage: int) -> Written:
    """The files of either stage. Raises BadValue: no rank, or a tag that is no name."""
    laid = lay(contents, options)
    form, tag = states.form_of(laid, contents, options, stage), states.folder(contents, laid, options)
    made = [_model(laid, contents, options, form, tag)]
    made += [_optimizer(laid, contents, form, rank, f"{tag}/{form.optimizer_file(rank)}") for rank in range(form.ranks)]
    return Written((*made, File("latest", (tag.encode(),))), tuple(states.losses(laid, contents)))


def _model(laid: Laid, contents: Contents, options: Options, form: states.Form, tag: str) -> File:
    storages = Storages()
    module = states.module(laid, contents, options, storages)
    frozen = {each.name: module[each.name] for each in laid.frozen}
    shapes = [states.shapes_of(group.params) for group in laid.groups]
    value = states.model_states(laid, contents, form, module, frozen, shapes)
    return states.file(f"{tag}/mp_rank_00_model_states.pt", value, storages)


def _optimizer(laid: Laid, contents: Contents, form: states.Form, rank: int, path: str) -> File:
    storages = Storages()
    scaler = states.loss_scaler(contents, form)
    scale = {"loss_scaler": scaler, "dynamic_loss_scale": True} if scaler is not None else {}
    value = {
        "optimizer_state_dict": _state(laid, form, rank, storages) | scale,
        "ds_config": states.config(form),
        "ds_version": states.VERSION,
    }
    return states.file(path, value, storages)


def _state(laid: Laid, form: states.Form, rank: int, storages: Storages) -> dict[str, Any]:
    """A rank's own. Weights are without padding there, the optimizer's states with it."""
    groups, ranks = laid.groups, form.ranks
    return {
        "base_optimizer_state": _base(laid, ranks, rank, storages),
        "single_partition_of_fp32_groups": [
            _tensor(flat.part(group, ranks, rank, padded=False), flat.lean(group, ranks, rank), storages)
            for group in groups
        ],
        "zero_stage": form.stage,
        "group_paddings": [flat.extent(group, ranks) - flat.lean(group, ranks, rank) for group in groups],
        "partition_count": [ranks for _ in groups],
        "ds_version": states.VERSION,
        "param_slice_mappings": [_addresses(group, ranks, rank) for group in groups],
    }


def _base(laid: Laid, ranks: int, rank: int, storages: Storages) -> dict[str, Any]:
    """The state_dict of torch's optimizer, which has one flat parameter for each group."""
    state = {}
    for at, group in enumerate(laid.groups):
        if group.states:
            state[at] = states.numbers(group, storages) | {
                key: _tensor(flat.part(group, ranks, rank, key, padded=True), flat.extent(group, ranks), storages)
                for key in group.states
            }
    groups = [states.param_group(group, [at]) for at, group in enumerate(laid.groups)] if laid.optimizer else []
    return {"state": state, "param_groups": groups}


def _tensor(parts: flat.Parts, numel: int, storages: Storages) -> pickles.Call:
    return pickles.tensor(storages.storage(parts, MASTER), (numel,))


def _addresses(group: FlatGroup, ranks: int, rank: int) -> OrderedDict[str, Any]:
    """Where in the rank's part each parameter stands; ds_to_universal goes by it."""
    return OrderedDict(
        (param.name, pickles.instance(_ADDRESS, {"numel": end - begin, "start": place}))
        for param, begin, end, place in flat.addresses(group, ranks, rank)
    )

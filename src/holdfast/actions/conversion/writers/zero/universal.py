"""DeepSpeed's universal form, which an engine of any number of ranks loads with ``load_universal``, and of any stage.

ds_to_universal writes two forms, one for stages 1 and 2 (a dict with the parameter in its shape) and one for 3 (a flat
tensor), and each fails in the other's engine. Both loaders take the dict (deepspeed/checkpoint/universal_checkpoint.py,
``load_hp_checkpoint_state``; runtime/zero/stage3.py, the same name), so that this is both: the parameters as dicts, the
optimizer's groups where each of them looks, and the model's file under both names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.actions.conversion import pickles
from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.files import File, Written
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers.zero import flat, states
from holdfast.actions.conversion.writers.zero.groups import MASTER, FlatGroup, Laid, lay, listing
from holdfast.errors import BadValue
from holdfast.facts.checkpoints.contents import Contents, Tensor

#: The stage that the files speak of. Loaders of universal checkpoints do not ask.
_STAGE = 2
_MODELS = ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")


def write(contents: Contents, options: Options) -> Written:
    """A folder with the tag's folder and ``latest_universal``. Raises BadValue: a tag, a parameter that is no name."""
    laid = lay(contents, options)
    tag = states.folder(contents, laid, options, after="_universal")
    made = [_model(laid, contents, options, f"{tag}/{name}") for name in _MODELS]
    for group in laid.groups:
        for param in group.params:
            made += _param(group, param, f"{tag}/zero/{_checked(param.name)}")
    made.append(_groups(laid, f"{tag}/zero/optimizer_state.pt"))
    return Written((*made, File("latest_universal", (tag.encode(),))), tuple(_losses(laid, contents)))


def _model(laid: Laid, contents: Contents, options: Options, path: str) -> File:
    """Buffers and frozen parameters in full; what is trained stands by itself."""
    storages = Storages()
    form = states.form_of(laid, contents, msgspec.structs.replace(options, ranks=1), _STAGE)
    module = states.module(laid, contents, options, storages, placeholders=MASTER)
    frozen = {each.name: storages.tensor(*states.weight(each, contents, options)) for each in laid.frozen}
    module.update(frozen)
    shapes = [states.shapes_of(group.params) for group in laid.groups]
    return states.file(path, states.model_states(laid, contents, form, module, frozen, shapes), storages)


def _param(group: FlatGroup, param: Tensor, folder: str) -> Iterator[File]:
    """Its files: the weights, each state, and the step. All parameters of a group have the same states."""
    yield _tensor(f"{folder}/fp32.pt", param, param)
    for key, source in group.states.items():
        yield _tensor(f"{folder}/{key}.pt", param, source.get(param.name))
    if group.states and "step" in group.numbers:
        storages = Storages()
        yield states.file(f"{folder}/step.pt", states.number(group, "step", storages), storages)


def _tensor(path: str, param: Tensor, source: Tensor | None) -> File:
    """One without dimensions is written with one: the loaders of stages 1 and 2 cut it along the first."""
    storages = Storages()
    parts = flat.share_of((param,), 1, 0, None if source is param else {} if source is None else {param.name: source})
    made = pickles.tensor(storages.storage(parts, MASTER), param.shape or (1,))
    return states.file(path, {"cat_dim": 0, "param": made}, storages)


def _groups(laid: Laid, path: str) -> File:
    """The optimizer's groups: stages 1 and 2 take ``param_groups``, stage 3 what is in ``optimizer_state_dict``.

    Stage 3 sets the options of the first of those in every group. What differs between groups is not among them, so
    that the engine keeps what it was configured with.
    """
    storages = Storages()
    groups = [states.param_group(group, [at]) for at, group in enumerate(laid.groups)] if laid.optimizer else []
    differing = _differing(laid)
    alike = [{key: value for key, value in each.items() if key not in differing} for each in groups]
    value: dict[str, Any] = {
        "zero_stage": _STAGE,
        "partition_count": [1 for _ in laid.groups],
        "ds_version": states.VERSION,
        "param_groups": groups,
        "optimizer_state_dict": {
            "state": {at: states.numbers(group, storages) for at, group in enumerate(laid.groups) if group.states},
            "param_groups": alike,
        },
    }
    return states.file(path, value, storages)


def _differing(laid: Laid) -> list[str]:
    """Options that are not the same in all groups."""
    first = laid.groups[0].options if laid.groups else {}
    keys = dict.fromkeys(key for group in laid.groups for key in group.options)
    return [key for key in keys if any(key not in g.options or g.options[key] != first.get(key) for g in laid.groups)]


def _checked(name: str) -> str:
    """A parameter's name is a path there. Raises BadValue: it would lead out of the folder."""
    if not name or name.startswith("/") or "\0" in name or ".." in name.split("/"):
        raise BadValue(
            f"the parameter's name {name!r}", why="the universal form makes a folder of it",
            next_step="give it another with --map",
        )  # fmt: skip
    return name


def _losses(laid: Laid, contents: Contents) -> Iterator[str]:
    yield from states.losses(laid, contents)
    others = [each.name for each in (*laid.frozen, *laid.buffers)]
    if others:
        yield (
            "DeepSpeed does not load frozen parameters and buffers from a universal checkpoint; they are in "
            f"{_MODELS[0]} under 'module': {listing(others)}."
        )
    if differing := _differing(laid):
        yield (
            "DeepSpeed's ZeRO-3 sets the same options in all groups of the optimizer when it loads a universal "
            f"checkpoint; it is left to keep what it is configured with of {listing(differing)}."
        )
    if sum("step" in group.numbers for group in laid.groups) > 1:
        yield (
            "DeepSpeed's ZeRO-3 counts the steps of all groups together after it loads a universal checkpoint of an "
            "optimizer of torch, which makes its next steps smaller; convert to zero3 for the number of ranks instead."
        )

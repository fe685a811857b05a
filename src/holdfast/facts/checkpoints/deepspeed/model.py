"""What DeepSpeed's ``*_model_states.pt`` say: the names and shapes of a model, what is tied and frozen, and plain data.

The keys are those of ``DeepSpeedEngine._common_checkpoint_state`` (deepspeed/runtime/engine.py); a user's client_state
stands beside them in the same dict. ZeRO-3 leaves the weights in ``module`` empty, and frozen ones are divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.facts.checkpoints.contents import Piece, Tensor
from holdfast.facts.checkpoints.deepspeed.files import Shard
from holdfast.facts.checkpoints.files.torch_pickle import Opaque, TensorAt
from holdfast.findings import Unknown

#: What DeepSpeed itself keeps in these files; the rest is the user's. Some stand there for older releases.
_OWN = frozenset({
    "module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params",
    "frozen_param_fragments", "skipped_steps", "global_steps", "global_samples", "dp_world_size", "mp_world_size",
    "checkpoint_parallel_dimensions", "ds_config", "ds_version", "universal_checkpoint_info", "num_experts",
    "ds_autoep_layers", "autoep_layers", "folding", "sparse_tensor_module_names", "csr_tensor_module_names",
    "micro_steps", "iteration",
})  # fmt: skip
#: Own ones that a conversion to DeepSpeed gives back.
_KEPT = ("skipped_steps", "global_samples")

Shape = tuple[int, ...]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model as one ``mp_rank`` has it. ``names`` is the order of its state_dict.

    ``groups`` has the names and shapes of the trained parameters in the order of the flat buffers: for each group of
    the optimizer, or subgroup in ZeRO-3. ``present`` are the whole tensors in ``module``.
    """

    names: tuple[str, ...]
    groups: tuple[Mapping[str, Shape], ...]
    present: Mapping[str, Tensor]
    buffers: frozenset[str]
    frozen: Mapping[str, Shape]
    ties: Mapping[str, str]
    #: ZeRO-2 and 3 list the frozen weights that they save, if there are none, too.
    lists_frozen: bool = True

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Those of all trained parameters."""
        return {name: shape for group in self.groups for name, shape in group.items()}


def model_of(shards: Sequence[Shard]) -> Model | None:
    """The model by the files of one ``mp_rank``, first rank first. None: none of them says the shapes.

    Raises:
        CheckpointUnreadable: a tensor in one is not in its file.
    """
    first = next((each for each in shards if isinstance(_of(each, "module"), Mapping)), None)
    if first is None:
        return None
    module: Mapping[Any, Any] = _of(first, "module")
    groups = groups_of(first.read.value.get("param_shapes"))
    trained = {name for group in groups for name in group}
    whole = {
        str(name): first.read.tensor(str(name), found, first.file)
        for name, found in module.items()
        if isinstance(found, TensorAt) and (0 not in found.shape or name not in trained)
    }
    buffers = frozenset(map(str, _of(first, "buffer_names") or ()))
    frozen = _shapes(_of(first, "frozen_param_shapes") or {})
    ties = _ties(first, module, trained)
    if not first.read.value.get("frozen_param_shapes"):  # ZeRO-1 does not list them
        rest = [name for name in whole if name not in trained and name not in buffers and name not in ties]
        frozen = {name: whole[name].shape for name in rest if 0 not in whole[name].shape}
    return Model(
        names=tuple(map(str, module)) or tuple(trained), groups=groups, buffers=buffers, frozen=frozen, ties=ties,
        present={name: each for name, each in whole.items() if 0 not in each.shape or name in buffers},
        lists_frozen=first.read.value.get("frozen_param_shapes", {}) is not None,
    )  # fmt: skip


def frozen_parts(shards: Sequence[Shard], world: int, model: Model) -> dict[str, Tensor]:
    """ZeRO-3's frozen weights: each rank has an equal part of each, the last is padded."""
    found: dict[str, Tensor] = {}
    for name, shape in model.frozen.items():
        pieces: list[Piece] = []
        dtype = ""
        for shard in shards:
            part = (_of(shard, "frozen_param_fragments") or {}).get(name)
            if isinstance(part, TensorAt):
                whole = shard.read.pieces(part, shard.file)
                pieces += divided(whole, shape, shard.rank, world)
                dtype = dtype or part.dtype
        if dtype:
            found[name] = Tensor(name=name, dtype=dtype, shape=shape, pieces=tuple(pieces))
    return found


def divided(whole: Sequence[Piece], shape: Shape, rank: int, world: int) -> Iterator[Piece]:
    """The part of a rank where a tensor is divided into equal parts, of which the last ones are padded."""
    total = numel(shape)
    share = -(-total // world)
    count = max(0, min(share, total - rank * share))
    if whole and count:
        yield msgspec.structs.replace(
            whole[0], shape=(min(count, whole[0].numel),), start=(rank * share,), flat=True, strides=None
        )


def values_of(state: Mapping[Any, Any]) -> dict[str, Any]:
    """The user's client_state, the scheduler's state (``lr_scheduler.``), and what of DeepSpeed's own is kept."""
    mine = {str(key): value for key, value in state.items() if key not in _OWN and value is not None}
    own = {f"deepspeed.{key}": state[key] for key in _KEPT if isinstance(state.get(key), int)}
    return {**dict(flattened(mine)), **own}


def flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its path; dicts whose keys are no words stay whole."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value and all(isinstance(each, str) and "." not in each for each in value):
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def steps_of(shards: Sequence[Shard]) -> dict[int, list[Shard]]:
    """The files by the step that they say they are of."""
    found: dict[int, list[Shard]] = {}
    for shard in shards:
        step = _of(shard, "global_steps")
        if isinstance(step, int):
            found.setdefault(step, []).append(shard)
    return found


def writer_of(shards: Sequence[Shard]) -> str:
    """``deepspeed 0.19.8``; '' where no file says it."""
    versions = [version for each in shards if isinstance(version := _of(each, "ds_version"), str)]
    return f"deepspeed {versions[0][:40]}" if versions else ""


def stage_of(shards: Sequence[Shard]) -> int | Unknown:
    """The stage by DeepSpeed's configuration, which is saved, too."""
    for shard in shards:
        config = _of(shard, "ds_config")
        zero = config.get("zero_optimization") if isinstance(config, Mapping) else None
        if isinstance(zero, Mapping) and isinstance(zero.get("stage"), int):
            return int(zero["stage"])
    return Unknown("no file of it says")


def groups_of(param_shapes: Any) -> tuple[Mapping[str, Shape], ...]:
    """``param_shapes``: a list of dicts, or one dict in early releases."""
    listed = [param_shapes] if isinstance(param_shapes, Mapping) else param_shapes
    return tuple(_shapes(each) for each in listed or () if isinstance(each, Mapping))


def ordered(found: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """The tensors in the order of the model's state_dict, those that it does not name last."""
    known = dict.fromkeys(name for name in model.names if name in found)
    return {name: found[name] for name in (*known, *(name for name in found if name not in known))}


def params_of(group: Mapping[Any, Any], at: int, model: Model) -> tuple[str, ...]:
    """The parameters of the optimizer's group ``at``: ZeRO-3 numbers its subgroups in it, ZeRO-1 and 2 the group."""
    said = group.get("params")
    subgroups = said if isinstance(said, (list, tuple)) else (at,)
    return tuple(name for sub in subgroups if 0 <= sub < len(model.groups) for name in model.groups[sub])


def numel(shape: Shape) -> int:
    """Elements of a shape."""
    total = 1
    for n in shape:
        total *= n
    return total


def number(value: Any) -> int | None:
    """A plain int, also of an enumeration's member (``ZeroStageEnum``)."""
    if isinstance(value, Opaque):
        value = value.__dict__["args"][0] if value.__dict__["args"] else None
    return value if isinstance(value, int) else None


def _shapes(found: Mapping[Any, Any]) -> dict[str, Shape]:
    """Names and shapes; what is no shape is left out, and is missed later."""
    return {
        str(name): tuple(shape)
        for name, shape in found.items()
        if isinstance(shape, tuple) and all(isinstance(n, int) and 0 <= n < 1 << 48 for n in shape)
    }


def _ties(shard: Shard, module: Mapping[Any, Any], trained: set[str]) -> dict[str, str]:
    """Second names and the first ones; before DeepSpeed 0.9 they are known by their common storage alone."""
    said = _of(shard, "shared_params")
    if isinstance(said, Mapping):
        return {str(name): str(first) for name, first in said.items() if name not in trained}
    places = {_at(found): name for name, found in module.items() if name in trained and isinstance(found, TensorAt)}
    rest = {name: found for name, found in module.items() if name not in trained and isinstance(found, TensorAt)}
    return {
        str(name): str(places[_at(found)])
        for name, found in rest.items()
        if 0 not in found.shape and _at(found) in places
    }


def _at(found: TensorAt) -> tuple[Any, ...]:
    return (found.storage.key, found.offset, found.shape, found.strides)


def _of(shard: Shard, key: str) -> Any:
    value = shard.read.value
    return value.get(key) if isinstance(value, Mapping) else None

"""Parses DeepSpeed's ``*_model_states.pt``: names, shapes, ties, frozen parameters, plain data.

Keys: ``DeepSpeedEngine._common_checkpoint_state`` (deepspeed/runtime/engine.py); a user's
client_state is stored in the same dict. With ZeRO-3 the weights in ``module`` are empty, and frozen
ones are sharded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.ckpt.contents import Tensor, TensorShard
from holdfast.ckpt.files.torch_pickle import OpaqueObject, TensorRef
from holdfast.ckpt.formats.deepspeed.files import RankFile
from holdfast.core.findings import Unknown

#: Keys of ``*_model_states.pt`` with a meaning of their own in DeepSpeed; the rest is the user's.
DEEPSPEED_KEYS = frozenset(
    """
    module buffer_names optimizer param_shapes frozen_param_shapes shared_params
    frozen_param_fragments skipped_steps global_steps global_samples dp_world_size mp_world_size
    checkpoint_parallel_dimensions ds_config ds_version universal_checkpoint_info num_experts
    ds_autoep_layers autoep_layers folding
    """.split()
)
#: Keys of older releases, and counts that a converted checkpoint does not need.
_OTHER_KEYS = {"sparse_tensor_module_names", "csr_tensor_module_names", "micro_steps", "iteration"}
#: DeepSpeed's keys that a conversion to DeepSpeed preserves.
_KEPT_KEYS = ("skipped_steps", "global_samples")

Shape = tuple[int, ...]


class RankModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model of one ``mp_rank``. ``names`` is the order of its state_dict.

    ``groups`` has names and shapes of the trained parameters in flat-buffer order: per optimizer
    group, or per subgroup in ZeRO-3. ``present`` are the complete tensors in ``module``.
    """

    names: tuple[str, ...]
    groups: tuple[Mapping[str, Shape], ...]
    present: Mapping[str, Tensor]
    buffers: frozenset[str]
    frozen: Mapping[str, Shape]
    ties: Mapping[str, str]
    #: ZeRO-2 and 3 list the frozen weights they save, even if there are none.
    lists_frozen: bool = True

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Return the shapes of all trained parameters."""
        return {name: shape for group in self.groups for name, shape in group.items()}


def read_model(rank_files: Sequence[RankFile]) -> RankModel | None:
    """Read the model from the files of one ``mp_rank``, first rank first.

    None: no file records the shapes.

    Raises:
        CheckpointUnreadable: the data of a tensor is missing.
    """
    first = next(
        (rank_file for rank_file in rank_files if isinstance(_entry(rank_file, "module"), Mapping)),
        None,
    )
    if first is None:
        return None
    module: Mapping[Any, Any] = _entry(first, "module")
    groups = parse_param_shapes(first.read.value.get("param_shapes"))
    trained = {name for group in groups for name in group}
    complete = {
        str(name): first.read.tensor(str(name), tensor, first.file)
        for name, tensor in module.items()
        if isinstance(tensor, TensorRef) and (0 not in tensor.shape or name not in trained)
    }
    buffers = frozenset(map(str, _entry(first, "buffer_names") or ()))
    frozen = _parse_shapes(_entry(first, "frozen_param_shapes") or {})
    ties = _find_ties(first, module, trained)
    if not first.read.value.get("frozen_param_shapes"):  # not listed by ZeRO-1
        rest = [
            name
            for name in complete
            if name not in trained and name not in buffers and name not in ties
        ]
        frozen = {name: complete[name].shape for name in rest if 0 not in complete[name].shape}
    return RankModel(
        names=tuple(map(str, module)) or tuple(trained),
        groups=groups,
        buffers=buffers,
        frozen=frozen,
        ties=ties,
        present={
            name: rank_file
            for name, rank_file in complete.items()
            if 0 not in rank_file.shape or name in buffers
        },
        lists_frozen=first.read.value.get("frozen_param_shapes", {}) is not None,
    )


def frozen_tensors(
    rank_files: Sequence[RankFile], world: int, model: RankModel
) -> dict[str, Tensor]:
    """Return ZeRO-3's frozen weights: every rank holds an equal shard, the last is padded."""
    tensors: dict[str, Tensor] = {}
    for name, shape in model.frozen.items():
        shards: list[TensorShard] = []
        dtype = ""
        for rank_file in rank_files:
            fragment = (_entry(rank_file, "frozen_param_fragments") or {}).get(name)
            if isinstance(fragment, TensorRef):
                stored = rank_file.read.shards(fragment, rank_file.file)
                shards += partition_shards(stored, shape, rank_file.rank, world)
                dtype = dtype or fragment.dtype
        if dtype:
            tensors[name] = Tensor(name=name, dtype=dtype, shape=shape, shards=tuple(shards))
    return tensors


def partition_shards(
    shards: Sequence[TensorShard], shape: Shape, rank: int, world: int
) -> Iterator[TensorShard]:
    """Yield a rank's part of a tensor cut into equal parts, of which the last are padded."""
    total = numel(shape)
    share = -(-total // world)
    count = max(0, min(share, total - rank * share))
    if shards and count:
        yield msgspec.structs.replace(
            shards[0],
            shape=(min(count, shards[0].numel),),
            start=(rank * share,),
            flat=True,
            strides=None,
        )


def user_values(state: Mapping[Any, Any]) -> dict[str, Any]:
    """Return client_state, scheduler state (``lr_scheduler.``), and preserved DeepSpeed values."""
    mine = {
        str(key): value
        for key, value in state.items()
        if key not in DEEPSPEED_KEYS | _OTHER_KEYS and value is not None
    }
    own = {f"deepspeed.{key}": state[key] for key in _KEPT_KEYS if isinstance(state.get(key), int)}
    return {**dict(flatten(mine)), **own}


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value by path; dicts whose keys are not names stay whole."""
    for key, value in values.items():
        if (
            isinstance(value, Mapping)
            and value
            and all(isinstance(item, str) and "." not in item for item in value)
        ):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def files_by_step(rank_files: Sequence[RankFile]) -> dict[int, list[RankFile]]:
    """Return the files by the step recorded in them."""
    by_step: dict[int, list[RankFile]] = {}
    for rank_file in rank_files:
        step = _entry(rank_file, "global_steps")
        if isinstance(step, int):
            by_step.setdefault(step, []).append(rank_file)
    return by_step


def writer_version(rank_files: Sequence[RankFile]) -> str:
    """Return ``deepspeed 0.19.8``; '' if not recorded."""
    versions = [
        version for file in rank_files if isinstance(version := _entry(file, "ds_version"), str)
    ]
    return f"deepspeed {versions[0][:40]}" if versions else ""


def configured_stage(rank_files: Sequence[RankFile]) -> int | Unknown:
    """Return the stage from the DeepSpeed configuration saved with the checkpoint."""
    for rank_file in rank_files:
        config = _entry(rank_file, "ds_config")
        zero = config.get("zero_optimization") if isinstance(config, Mapping) else None
        if isinstance(zero, Mapping) and isinstance(zero.get("stage"), int):
            return int(zero["stage"])
    return Unknown("not recorded in any file")


def parse_param_shapes(param_shapes: Any) -> tuple[Mapping[str, Shape], ...]:
    """Parse ``param_shapes``: a list of dicts, or one dict in early releases."""
    listed = [param_shapes] if isinstance(param_shapes, Mapping) else param_shapes
    return tuple(_parse_shapes(item) for item in listed or () if isinstance(item, Mapping))


def in_model_order(tensors: Mapping[str, Tensor], model: RankModel) -> dict[str, Tensor]:
    """Return the tensors in state_dict order, unnamed ones last."""
    known = dict.fromkeys(name for name in model.names if name in tensors)
    return {
        name: tensors[name] for name in (*known, *(name for name in tensors if name not in known))
    }


def group_params(group: Mapping[Any, Any], at: int, model: RankModel) -> tuple[str, ...]:
    """Return the parameters of the optimizer's group ``at``.

    ZeRO-3 lists subgroup numbers in it, ZeRO-1 and 2 the group number.
    """
    params = group.get("params")
    subgroups = params if isinstance(params, (list, tuple)) else (at,)
    return tuple(
        name for sub in subgroups if 0 <= sub < len(model.groups) for name in model.groups[sub]
    )


def numel(shape: Shape) -> int:
    """Return the number of elements of a shape."""
    total = 1
    for n in shape:
        total *= n
    return total


def plain_int(value: Any) -> int | None:
    """Return a plain int, also from an enumeration member (``ZeroStageEnum``)."""
    if isinstance(value, OpaqueObject):
        value = value.__dict__["args"][0] if value.__dict__["args"] else None
    return value if isinstance(value, int) else None


def _parse_shapes(shapes: Mapping[Any, Any]) -> dict[str, Shape]:
    """Return names and shapes; invalid shapes are omitted and later reported missing."""
    return {
        str(name): tuple(shape)
        for name, shape in shapes.items()
        if isinstance(shape, tuple) and all(isinstance(n, int) and 0 <= n < 1 << 48 for n in shape)
    }


def _find_ties(rank_file: RankFile, module: Mapping[Any, Any], trained: set[str]) -> dict[str, str]:
    """Return aliases; before DeepSpeed 0.9 they are known only by shared storage."""
    declared = _entry(rank_file, "shared_params")
    if isinstance(declared, Mapping):
        return {str(name): str(first) for name, first in declared.items() if name not in trained}
    name_by_storage = {
        _storage_key(tensor): name
        for name, tensor in module.items()
        if name in trained and isinstance(tensor, TensorRef)
    }
    rest = {
        name: tensor
        for name, tensor in module.items()
        if name not in trained and isinstance(tensor, TensorRef)
    }
    return {
        str(name): str(name_by_storage[_storage_key(tensor)])
        for name, tensor in rest.items()
        if 0 not in tensor.shape and _storage_key(tensor) in name_by_storage
    }


def _storage_key(tensor: TensorRef) -> tuple[Any, ...]:
    return (tensor.storage.key, tensor.offset, tensor.shape, tensor.strides)


def _entry(rank_file: RankFile, key: str) -> Any:
    value = rank_file.read.value
    return value.get(key) if isinstance(value, Mapping) else None

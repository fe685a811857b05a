"""Reads DeepSpeed universal checkpoints (deepspeed/checkpoint/ds_to_universal.py).

    zero/<name>/fp32.pt exp_avg.pt exp_avg_sq.pt step.pt   {"param": tensor, ...}; from ZeRO-3 flat
    zero/optimizer_state.pt                                groups and other unsharded state
    [zero_pp_rank_0_]mp_rank_00_model_states.pt            as in the original checkpoint

One made from ZeRO-3 has shapes, buffers, frozen and tied weights only in the model files, and no
steps. Untrained tensors are always read from there: next to the parameters they were cast to fp32,
integers included.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    FileProblem,
    OptimizerState,
    ParamGroup,
    Tensor,
    TensorShard,
)
from holdfast.ckpt.files import torch_files
from holdfast.ckpt.files.torch_files import TorchFile
from holdfast.ckpt.files.torch_pickle import TensorRef
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.formats.deepspeed import files
from holdfast.ckpt.formats.deepspeed import model as models
from holdfast.ckpt.formats.deepspeed import zero as deepspeed
from holdfast.ckpt.formats.deepspeed.files import MAX_RANKS, RankFile
from holdfast.ckpt.formats.deepspeed.flat import WEIGHTS
from holdfast.ckpt.formats.deepspeed.model import RankModel, Shape
from holdfast.ckpt.formats.deepspeed.zero import MALFORMED_ERRORS
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown

ZERO = "zero"
_OPTIMIZER = f"{ZERO}/optimizer_state.pt"
_SUFFIX = ".pt"


class _ParamFiles(msgspec.Struct):
    """The parameter files: tensors and numbers by name and state, sizes, problems."""

    tensors: dict[str, dict[str, Tensor]]
    numbers: dict[str, dict[str, float | int]]
    sizes: dict[str, int]
    problems: list[FileProblem]


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize a universal checkpoint. Raises CheckpointUnreadable: folder not listable."""
    folder = _folder(path)
    return None if folder is None else CheckpointFormat.UNIVERSAL


def _folder(path: Path) -> Path | None:
    """Return the folder that holds ``zero``: ``path`` or the one that a latest file names."""
    if not path.is_dir():
        return None
    if _is_universal(path):
        return path
    for name in (files.LATEST, files.LATEST_UNIVERSAL):
        try:
            folder = files.tag_folder(path, name)
        except CheckpointUnreadable:
            continue
        if folder is not None and _is_universal(folder):
            return folder
        if folder is not None and deepspeed.detect_format(folder) is not None:
            return None  # the checkpoint in `latest` takes precedence over one derived from it
    return None


def _is_universal(folder: Path) -> bool:
    if not (folder / ZERO).is_dir():
        return False
    names = files.list_tag_files(folder)
    return bool(names.models) and not names.optims


def read_contents(path: Path) -> CheckpointContents:
    """Return the contents. Raises CheckpointUnreadable: nothing can be read."""
    folder = _folder(path)
    if folder is None:
        raise CheckpointUnreadable(path, why="not a DeepSpeed universal checkpoint")
    try:
        return _read(folder)
    except MALFORMED_ERRORS as error:
        why = f"its files are inconsistent ({type(error).__name__})"
        raise CheckpointUnreadable(folder, why=why) from error


def _read(folder: Path) -> CheckpointContents:
    problems: list[FileProblem] = []
    names = files.list_tag_files(folder)
    rank_files = sorted(
        files.read_rank_files(folder, names.models, problems).values(),
        key=lambda rank_file: rank_file.position,
    )
    model = _read_model(folder, rank_files, problems)
    world = _world_size(rank_files)
    with TensorReader(folder) as reader:
        param_files = _read_params(
            folder,
            model,
            reader,
            complete_shapes=len({rank_file.position[0] for rank_file in rank_files}) == 1,
        )
        options, step = _read_groups(folder, reader, param_files)
    weights = {
        name: states[WEIGHTS] for name, states in param_files.tensors.items() if WEIGHTS in states
    }
    frozen = models.frozen_tensors(rank_files, world, model) if names.stage3 else {}
    untrained = {name: tensor for name, tensor in model.present.items() if name not in model.shapes}
    tensors = {**weights, **untrained, **frozen}
    steps = models.files_by_step(rank_files)
    return CheckpointContents(
        format=CheckpointFormat.UNIVERSAL,
        root=str(folder),
        ties={k: v for k, v in model.ties.items() if v in tensors},
        tensors=models.in_model_order(
            {name: tensor for name, tensor in tensors.items() if name not in model.ties}, model
        ),
        halves={
            k: v for k, v in model.present.items() if k in weights and v.shape == weights[k].shape
        },
        frozen=frozenset(name for name in model.frozen if name in tensors),
        buffers=model.buffers & tensors.keys(),
        optimizer=_optimizer(model, param_files, options, step),
        world_size=world,
        writer=models.writer_version(rank_files),
        step=max(steps, key=lambda rank_file: len(steps[rank_file]))
        if steps
        else Unknown("not recorded in any file"),
        values=models.user_values(rank_files[0].read.value),
        files={**names.sizes, **param_files.sizes},
        problems=(*problems, *param_files.problems, *_missing_files(model, param_files)),
    )


def _read_model(
    folder: Path, rank_files: Sequence[RankFile], problems: Sequence[FileProblem]
) -> RankModel:
    """Return the model of the first mp rank. Raises CheckpointUnreadable: no file has it."""
    first = [
        rank_file for rank_file in rank_files if rank_file.position[0] == rank_files[0].position[0]
    ]
    model = models.read_model(first) if first else None
    if model is None:
        reason = problems[0].why if problems else "none names the parameters"
        raise CheckpointUnreadable(folder, why=f"no model file can be read: {reason}")
    return model


def _world_size(rank_files: Sequence[RankFile]) -> int:
    """Return the data-parallel ranks of the original checkpoint."""
    declared = rank_files[0].read.value.get("dp_world_size")
    return (
        declared
        if isinstance(declared, int) and 0 < declared <= MAX_RANKS
        else max(rank_file.rank for rank_file in rank_files) + 1
    )


def _read_params(
    folder: Path, model: RankModel, reader: TensorReader, *, complete_shapes: bool
) -> _ParamFiles:
    """Read every file below ``zero``; ``complete_shapes`` False: the model's shapes are partial."""
    params = _ParamFiles({}, {}, {}, [])
    for name, states in sorted(_list_params(folder).items()):
        for state, size in sorted(states.items()):
            file = f"{ZERO}/{name}/{state}{_SUFFIX}"
            params.sizes[file] = size
            if name not in model.present or name in model.shapes:
                shape = model.shapes.get(name) if complete_shapes else None
                try:
                    _add_param_file(
                        params,
                        name,
                        state,
                        torch_files.read_torch_file(folder / file),
                        file,
                        shape,
                        reader,
                    )
                except CheckpointUnreadable as error:
                    params.problems.append(problem_of(error, file, beside=state != WEIGHTS))
    return params


def _list_params(folder: Path) -> dict[str, dict[str, int]]:
    """Return parameter names, their states, and file sizes."""
    params: dict[str, dict[str, int]] = {}
    with os.scandir(folder / ZERO) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    for name in names:
        with os.scandir(folder / ZERO / name) as entries:
            params[name] = {
                entry.name.removesuffix(_SUFFIX): entry.stat().st_size
                for entry in entries
                if entry.is_file() and entry.name.endswith(_SUFFIX)
            }
    return params


def _add_param_file(
    params: _ParamFiles,
    name: str,
    state: str,
    parsed: TorchFile,
    file: str,
    shape: Shape | None,
    reader: TensorReader,
) -> None:
    """Add one parameter file: a tensor, a tensor in a dict, or a number."""
    value = parsed.value.get("param") if isinstance(parsed.value, Mapping) else parsed.value
    if isinstance(value, TensorRef) and (state == "step" or (not value.shape and shape != ())):
        value = reader.read_tensor(parsed.tensor(name, value, file)).item()
    if isinstance(value, (int, float)):
        number = int(value) if float(value).is_integer() else value
        params.numbers.setdefault(name, {})[state] = number
    elif isinstance(value, TensorRef):
        params.tensors.setdefault(name, {})[state] = _reshape(
            parsed.tensor(name, value, file), shape
        )
    else:
        raise CheckpointUnreadable(parsed.path, why="it contains no tensor")


def _reshape(tensor: Tensor, shape: Shape | None) -> Tensor:
    """Give a flat tensor from ZeRO-3 its shape."""
    if (
        shape is None
        or shape == tensor.shape
        or models.numel(shape) != tensor.numel
        or len(tensor.shape) != 1
    ):
        return tensor
    shards = tuple(_flat_shard(shard) for shard in tensor.shards)
    return Tensor(name=tensor.name, dtype=tensor.dtype, shape=shape, shards=shards)


def _flat_shard(shard: TensorShard) -> TensorShard:
    return msgspec.structs.replace(shard, flat=True, start=(0,))


def _read_groups(
    folder: Path, reader: TensorReader, param_files: _ParamFiles
) -> tuple[list[dict[Any, Any]], dict[Any, Any]]:
    """Return the parameter groups, and the step by group (used by ZeRO-3)."""
    try:
        param_files.sizes[_OPTIMIZER] = (folder / _OPTIMIZER).stat().st_size
        parsed = torch_files.read_torch_file(folder / _OPTIMIZER)
    except OSError:
        why = "the optimizer's groups are missing"
        param_files.problems.append(
            FileProblem(kind="missing", file=_OPTIMIZER, why=why, beside=True)
        )
        return [], {}
    except CheckpointUnreadable as error:
        param_files.problems.append(problem_of(error, _OPTIMIZER, beside=True))
        return [], {}
    value = parsed.value if isinstance(parsed.value, Mapping) else {}
    groups = [
        _plain(parsed, reader, group)
        for group in value.get("param_groups") or ()
        if isinstance(group, Mapping)
    ]
    inner = value.get("optimizer_state_dict") or {}
    states = {key: _plain(parsed, reader, state) for key, state in inner.get("state", {}).items()}
    return groups, {
        key: state["step"]
        for key, state in states.items()
        if isinstance(state.get("step"), (int, float))
    }


def _plain(parsed: TorchFile, reader: TensorReader, values: Mapping[Any, Any]) -> dict[Any, Any]:
    return {
        key: reader.read_tensor(parsed.tensor("", value, _OPTIMIZER)).item()
        if isinstance(value, TensorRef) and value.shape == ()
        else value
        for key, value in values.items()
    }


def _optimizer(
    model: RankModel,
    param_files: _ParamFiles,
    options: Sequence[Mapping[Any, Any]],
    steps: Mapping[Any, float],
) -> OptimizerState | None:
    """Return the optimizer by name. None: no parameter has a state."""
    tensors = {
        name: {k: v for k, v in element.items() if k != WEIGHTS}
        for name, element in param_files.tensors.items()
    }
    tensors = {name: element for name, element in tensors.items() if element}
    if not tensors:
        return None
    numbers = {name: dict(element) for name, element in param_files.numbers.items()}
    for at, shapes in enumerate(model.groups):
        for name in shapes if at in steps else ():
            numbers.setdefault(name, {}).setdefault("step", int(steps[at]))
    groups = []
    for at, group in enumerate(options):
        plain = {str(key): value for key, value in group.items() if key != "params"}
        groups.append(ParamGroup(params=models.group_params(group, at, model), options=plain))
    return OptimizerState(tensors=tensors, numbers=numbers, groups=tuple(groups))


def _missing_files(model: RankModel, param_files: _ParamFiles) -> Iterable[FileProblem]:
    """Yield files that most parameters have and some do not."""
    common = Counter(state for name in model.shapes for state in param_files.tensors.get(name, {}))
    usual = {state for state, count in common.items() if 2 * count > len(model.shapes)} | {WEIGHTS}
    known = {problem.file for problem in param_files.problems}
    for name in model.shapes:
        for state in sorted(usual - param_files.tensors.get(name, {}).keys()):
            file = f"{ZERO}/{name}/{state}{_SUFFIX}"
            if file not in known:
                why = f"{state} of {name} is missing"
                yield FileProblem(kind="missing", file=file, why=why, beside=state != WEIGHTS)

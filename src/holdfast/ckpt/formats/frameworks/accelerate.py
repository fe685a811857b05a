"""Reads ``Accelerator.save_state`` folders: model and optimizer as the backend writes them.

    model.safetensors or pytorch_model.bin · optimizer.bin     one device, or DDP
    pytorch_model_fsdp.bin · optimizer.bin                     FSDP, FULL_STATE_DICT
    pytorch_model_fsdp_0/ · optimizer_0/                       FSDP, SHARDED_STATE_DICT (DCP)
    pytorch_model/ · latest                                    DeepSpeed
    scheduler.bin · scaler.pt · random_states_0.pkl …          all of them

File names: accelerate/utils/constants.py, checkpointing.py, utils/fsdp_utils.py.
``transformers.Trainer`` writes the third form, too, next to its own states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    FileProblem,
    OptimizerState,
    Tensor,
)
from holdfast.ckpt.files import torch_legacy
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.formats.deepspeed import zero as deepspeed
from holdfast.ckpt.formats.distributed import dcp
from holdfast.ckpt.formats.weight_files import ModelWeights, add_file, file_sizes
from holdfast.ckpt.state_dicts import optimizers
from holdfast.ckpt.state_dicts.optimizer_params import MappingHints
from holdfast.ckpt.state_dicts.values import TorchSource, flatten_values
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown

_RANK = re.compile(r"random_states_(\d+)\.pkl\Z")
_FSDP = "pytorch_model_fsdp"
_UNSHARDED = ("model.safetensors", "pytorch_model.bin", f"{_FSDP}.bin")
_FURTHER = re.compile(r"(model|pytorch_model|pytorch_model_fsdp)_(\d+)\.(safetensors|bin)\Z")
_SHARDED = f"{_FSDP}_0"
_OPTIMIZER = re.compile(r"optimizer(_\d+)?\.bin\Z")
_STATE = re.compile(
    r"((scheduler|sampler|dl_state_dict)(_\d+)?\.bin|scaler\.pt|custom_checkpoint_\d+\.pkl)\Z"
)


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize random states of ranks, or a model and optimizer under Accelerate's names."""
    if not path.is_dir():
        return None
    names = {entry.name for entry in path.iterdir()}
    whole = "optimizer.bin" in names and any(name in names for name in _UNSHARDED)
    marked = whole or _SHARDED in names or any(_RANK.match(name) for name in names)
    return CheckpointFormat.ACCELERATE if marked else None


def read_contents(path: Path, hints: MappingHints | None = None) -> CheckpointContents:
    """Return the contents; ``hints``: see :func:`optimizers.merge_optimizers`.

    Raises:
        CheckpointUnreadable: there is no model.
    """
    contents = _read_sharded(path) or _read_deepspeed(path) or _read_unsharded(path, hints)
    ranks, problems = _count_ranks(path)
    extra_values = dict(_read_values(path, problems))
    return msgspec.structs.replace(
        contents,
        format=CheckpointFormat.ACCELERATE,
        root=str(path),
        writer="accelerate",
        world_size=contents.world_size if isinstance(contents.world_size, int) else ranks,
        values={**contents.values, **extra_values},
        files={**file_sizes(path), **contents.files},
        problems=(*contents.problems, *problems),
    )


def move_below(contents: CheckpointContents, folder: str) -> CheckpointContents:
    """Return the contents with all file paths moved below ``folder``."""

    def move_all(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: _move_tensor(tensor, folder) for name, tensor in tensors.items()}

    optimizer = contents.optimizer
    if optimizer is not None:
        tensors = {name: move_all(states) for name, states in optimizer.tensors.items()}
        optimizer = OptimizerState(
            tensors=tensors, numbers=optimizer.numbers, groups=optimizer.groups
        )
    return msgspec.structs.replace(
        contents,
        tensors=move_all(contents.tensors),
        halves=move_all(contents.halves),
        optimizer=optimizer,
        values={
            key: _move_tensor(value, folder) if isinstance(value, Tensor) else value
            for key, value in contents.values.items()
        },
        files={f"{folder}/{file}": size for file, size in contents.files.items()},
        problems=tuple(
            msgspec.structs.replace(problem, file=f"{folder}/{problem.file}".rstrip("/"))
            for problem in contents.problems
        ),
    )


def _move_tensor(tensor: Tensor, folder: str) -> Tensor:
    shards = tuple(
        msgspec.structs.replace(shard, file=f"{folder}/{shard.file}") for shard in tensor.shards
    )
    return msgspec.structs.replace(tensor, shards=shards)


def _read_unsharded(path: Path, hints: MappingHints | None) -> CheckpointContents:
    """Read a model in its own file, with the optimizer by number or name."""
    weights = ModelWeights()
    models = [name for name in _UNSHARDED if (path / name).is_file()]
    if not models:
        raise CheckpointUnreadable(
            path, why=f"it contains no model: none of {', '.join(_UNSHARDED)}, {_SHARDED}"
        )
    add_file(path, models[0], weights)
    further = sorted(entry.name for entry in path.iterdir() if _FURTHER.match(entry.name))
    notes = [f"ignoring {name}, which holds another model" for name in further]
    notes += [f"reading {models[0]}; ignoring {name}" for name in models[1:]]
    states, problems = optimizers.read_optimizer_states(
        path, sorted(entry.name for entry in path.iterdir() if _OPTIMIZER.match(entry.name))
    )
    weights.problems += problems
    optimizer = (
        optimizers.merge_optimizers(path, states, weights.tensors, hints, ordered=weights.ordered)
        if states
        else optimizers.OptimizerResult()
    )
    return CheckpointContents(
        format=CheckpointFormat.ACCELERATE,
        root=str(path),
        frozen=optimizer.frozen,
        tensors=optimizer.without_ties(weights.tensors),
        ties={**weights.ties, **optimizer.ties},
        buffers=optimizer.buffers,
        optimizer=optimizer.optimizer,
        values=weights.values,
        notes=(*notes, *optimizer.notes),
        step=optimizer.step,
        problems=tuple(weights.problems),
    )


def _read_sharded(path: Path) -> CheckpointContents | None:
    """Read model and optimizer from their folders of torch.distributed.checkpoint."""
    if not (path / _SHARDED).is_dir():
        return None
    model = move_below(dcp.read_contents(path / _SHARDED), _SHARDED)
    if not (path / "optimizer_0").is_dir():
        return model
    other = move_below(dcp.read_contents(path / "optimizer_0"), "optimizer_0")
    optimizer = other.optimizer
    trained = (
        {name for group in optimizer.groups for name in group.params}
        if optimizer is not None
        else set()
    )
    untrained = (
        [name for name in model.tensors if name not in trained]
        if trained & set(model.tensors)
        else []
    )
    frozen = {name for name in untrained if name.endswith(("weight", "bias"))}
    problems = (msgspec.structs.replace(problem, beside=True) for problem in other.problems)
    return msgspec.structs.replace(
        model,
        optimizer=optimizer,
        step=other.step,
        frozen=frozenset(frozen | model.frozen),
        files={**model.files, **other.files},
        buffers=frozenset((set(untrained) | model.buffers) - frozen - model.frozen),
        problems=(*model.problems, *problems),
        notes=(*model.notes, *other.notes),
    )


def _read_deepspeed(path: Path) -> CheckpointContents | None:
    """Read what DeepSpeed wrote into the folder."""
    if deepspeed.detect_format(path) is None:
        return None
    contents = deepspeed.read_contents(path)
    inner = Path(contents.root).relative_to(path).as_posix()
    return contents if inner == "." else move_below(contents, inner)


def _count_ranks(path: Path) -> tuple[int | Unknown, list[FileProblem]]:
    """Return the number of ranks with random states, and problems with these files."""
    files = {
        int(match[1]): entry.name for entry in path.iterdir() if (match := _RANK.match(entry.name))
    }
    if not files:
        return Unknown("no rank saved random states"), []
    ranks = min(max(files) + 1, 1 << 20)
    problems = [
        FileProblem(
            kind="missing",
            file=f"random_states_{rank}.pkl",
            why="files of higher ranks exist",
            rank=rank,
            beside=True,
        )
        for rank in range(ranks)
        if rank not in files
    ]
    for rank, name in sorted(files.items()):
        try:
            torch_legacy.read_torch_file(path / name)
        except CheckpointUnreadable as error:
            problems.append(problem_of(error, name, rank, beside=True))
    return ranks, problems


def _read_values(path: Path, problems: list[FileProblem]) -> Iterator[tuple[str, Any]]:
    """Yield the values of schedulers, samplers, the scaler and custom objects."""
    for name in sorted(entry.name for entry in path.iterdir() if _STATE.match(entry.name)):
        try:
            file = torch_legacy.read_torch_file(path / name)
            yield from flatten_values(TorchSource(file, name), file.value, name.rpartition(".")[0])
        except CheckpointUnreadable as error:
            problems.append(problem_of(error, name, beside=True))

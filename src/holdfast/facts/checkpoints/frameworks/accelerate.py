"""Folders of ``Accelerator.save_state``: the model and optimizer as the backend writes them, and states beside them.

    model.safetensors or pytorch_model.bin · optimizer.bin       one device, or DDP
    pytorch_model_fsdp.bin · optimizer.bin                       FSDP, FULL_STATE_DICT
    pytorch_model_fsdp_0/ · optimizer_0/                         FSDP, SHARDED_STATE_DICT: torch.distributed.checkpoint
    pytorch_model/ · latest                                      DeepSpeed
    scheduler.bin · scaler.pt · random_states_0.pkl …            of all of them

The names are those of accelerate/utils/constants.py, checkpointing.py and utils/fsdp_utils.py. ``transformers.Trainer``
writes the third form, too, beside its own states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format, Gap, Optimizer, Tensor
from holdfast.facts.checkpoints.deepspeed import zero as deepspeed
from holdfast.facts.checkpoints.distributed import dcp
from holdfast.facts.checkpoints.files import torch_legacy
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.files.weight_files import Weights, read_into
from holdfast.facts.checkpoints.state_dicts import optimizers
from holdfast.facts.checkpoints.state_dicts.dealing import Hints
from holdfast.facts.checkpoints.state_dicts.values import Source, values
from holdfast.findings import Unknown

_RANK = re.compile(r"random_states_(\d+)\.pkl\Z")
_FSDP = "pytorch_model_fsdp"
_WHOLE = ("model.safetensors", "pytorch_model.bin", f"{_FSDP}.bin")
_FURTHER = re.compile(r"(model|pytorch_model|pytorch_model_fsdp)_(\d+)\.(safetensors|bin)\Z")
_SHARDED = f"{_FSDP}_0"
_OPTIMIZER = re.compile(r"optimizer(_\d+)?\.bin\Z")
_STATE = re.compile(r"((scheduler|sampler|dl_state_dict)(_\d+)?\.bin|scaler\.pt|custom_checkpoint_\d+\.pkl)\Z")


def recognises(path: Path) -> Format | None:
    """A folder with random states of ranks, or with a model and optimizer under Accelerate's names."""
    if not path.is_dir():
        return None
    names = {each.name for each in path.iterdir()}
    whole = "optimizer.bin" in names and any(name in names for name in _WHOLE)
    marked = whole or _SHARDED in names or any(_RANK.match(name) for name in names)
    return Format.ACCELERATE if marked else None


def read(path: Path, hints: Hints | None = None) -> Contents:
    """What is in the folder. ``hints``: see :func:`optimizers.find`. Raises CheckpointUnreadable."""
    found = _sharded(path) or _deepspeed(path) or _whole(path, hints)
    ranks, gaps = _ranks(path)
    said = dict(_values(path, gaps))
    return msgspec.structs.replace(
        found, format=Format.ACCELERATE, root=str(path), writer="accelerate",
        world_size=found.world_size if isinstance(found.world_size, int) else ranks, values={**found.values, **said},
        files={**_files(path), **found.files}, gaps=(*found.gaps, *gaps),
    )  # fmt: skip


def below(found: Contents, folder: str) -> Contents:
    """The same as a part of a checkpoint in which it is a folder."""

    def moved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: _moved(tensor, folder) for name, tensor in tensors.items()}

    optimizer = found.optimizer
    if optimizer is not None:
        tensors = {name: moved(states) for name, states in optimizer.tensors.items()}
        optimizer = Optimizer(tensors=tensors, numbers=optimizer.numbers, groups=optimizer.groups)
    return msgspec.structs.replace(
        found, tensors=moved(found.tensors), halves=moved(found.halves), optimizer=optimizer,
        values={key: _moved(each, folder) if isinstance(each, Tensor) else each for key, each in found.values.items()},
        files={f"{folder}/{file}": size for file, size in found.files.items()},
        gaps=tuple(msgspec.structs.replace(gap, file=f"{folder}/{gap.file}".rstrip("/")) for gap in found.gaps),
    )  # fmt: skip


def _moved(tensor: Tensor, folder: str) -> Tensor:
    pieces = tuple(msgspec.structs.replace(piece, file=f"{folder}/{piece.file}") for piece in tensor.pieces)
    return msgspec.structs.replace(tensor, pieces=pieces)


def _whole(path: Path, hints: Hints | None) -> Contents:
    """The model in files of its own, the optimizer by number or name."""
    weights = Weights()
    found = [name for name in _WHOLE if (path / name).is_file()]
    if not found:
        raise CheckpointUnreadable(path, why=f"there is no model in it: none of {', '.join(_WHOLE)}, {_SHARDED}")
    read_into(path, found[0], weights)
    further = sorted(each.name for each in path.iterdir() if _FURTHER.match(each.name))
    notes = [f"{name} holds another model, which is not looked at" for name in further]
    notes += [f"{found[0]} is read; {name} is there, too, and is not looked at" for name in found[1:]]
    given, gaps = optimizers.given(path, sorted(each.name for each in path.iterdir() if _OPTIMIZER.match(each.name)))
    weights.gaps += gaps
    known = (
        optimizers.find(path, given, weights.tensors, hints, ordered=weights.ordered) if given else optimizers.Found()
    )
    return Contents(
        format=Format.ACCELERATE, root=str(path), frozen=known.frozen,
        tensors=known.without_ties(weights.tensors),
        ties={**weights.ties, **known.ties},
        buffers=known.buffers, optimizer=known.optimizer, values=weights.values, notes=(*notes, *known.notes),
        step=known.step, gaps=tuple(weights.gaps),
    )  # fmt: skip


def _sharded(path: Path) -> Contents | None:
    """The model and optimizer in folders of torch.distributed.checkpoint, which are put together."""
    if not (path / _SHARDED).is_dir():
        return None
    model = below(dcp.read(path / _SHARDED), _SHARDED)
    if not (path / "optimizer_0").is_dir():
        return model
    other = below(dcp.read(path / "optimizer_0"), "optimizer_0")
    optimizer = other.optimizer
    trained = {name for group in optimizer.groups for name in group.params} if optimizer is not None else set()
    left = [name for name in model.tensors if name not in trained] if trained & set(model.tensors) else []
    frozen = {name for name in left if name.endswith(("weight", "bias"))}
    gaps = (msgspec.structs.replace(gap, beside=True) for gap in other.gaps)
    return msgspec.structs.replace(
        model, optimizer=optimizer, step=other.step, frozen=frozenset(frozen | model.frozen),
        files={**model.files, **other.files},
        buffers=frozenset((set(left) | model.buffers) - frozen - model.frozen),
        gaps=(*model.gaps, *gaps), notes=(*model.notes, *other.notes),
    )  # fmt: skip


def _deepspeed(path: Path) -> Contents | None:
    """What DeepSpeed wrote into the folder."""
    if deepspeed.recognises(path) is None:
        return None
    found = deepspeed.read(path)
    inner = Path(found.root).relative_to(path).as_posix()
    return found if inner == "." else below(found, inner)


def _ranks(path: Path) -> tuple[int | Unknown, list[Gap]]:
    """How many ranks saved random states, and whose are missing or cannot be read."""
    files = {int(match[1]): each.name for each in path.iterdir() if (match := _RANK.match(each.name))}
    if not files:
        return Unknown("no rank saved random states"), []
    ranks = min(max(files) + 1, 1 << 20)
    gaps = [
        Gap(
            kind="missing", file=f"random_states_{rank}.pkl", why="those of a higher rank are there", rank=rank,
            beside=True,
        )
        for rank in range(ranks) if rank not in files
    ]  # fmt: skip
    for rank, name in sorted(files.items()):
        try:
            torch_legacy.read(path / name)
        except CheckpointUnreadable as error:
            gaps.append(gap_of(error, name, rank, beside=True))
    return ranks, gaps


def _values(path: Path, gaps: list[Gap]) -> Iterator[tuple[str, Any]]:
    """What schedulers, samplers, the scaler and objects of the user say."""
    for name in sorted(each.name for each in path.iterdir() if _STATE.match(each.name)):
        try:
            file = torch_legacy.read(path / name)
            yield from values(Source(file, name), file.value, name.rpartition(".")[0])
        except CheckpointUnreadable as error:
            gaps.append(gap_of(error, name, beside=True))


def _files(path: Path) -> dict[str, int]:
    return {each.name: each.stat().st_size for each in sorted(path.iterdir()) if each.is_file()}

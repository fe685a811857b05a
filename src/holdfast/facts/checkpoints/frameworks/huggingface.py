"""Folders of Hugging Face: weights in one file or in shards with an index, a configuration, and the Trainer's states.

    config.json · model.safetensors                                       one file
    config.json · model-00001-of-00002.safetensors · ….index.json         shards; pytorch_model-….bin before safetensors
    optimizer.pt · scheduler.pt · trainer_state.json · rng_state_0.pth    what ``transformers.Trainer`` adds

The names are those of transformers (utils/__init__.py, trainer.py), diffusers and peft.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Contents, Format
from holdfast.facts.checkpoints.files import torch_legacy
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.files.weight_files import Weights, find, read_weights
from holdfast.facts.checkpoints.state_dicts import optimizers
from holdfast.facts.checkpoints.state_dicts.dealing import Hints
from holdfast.facts.checkpoints.state_dicts.values import Source, values
from holdfast.findings import Unknown

CONFIG, TRAINER = "config.json", "trainer_state.json"
_MOST_JSON = 64 << 20
_RANK = re.compile(r"rng_state_(\d+)\.pth\Z")
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
_STATES = {"scheduler.pt": "scheduler", "scaler.pt": "scaler"}


def recognises(path: Path) -> Format | None:
    """A folder with weights under one of the names that Hugging Face's libraries give them."""
    return Format.HUGGINGFACE if path.is_dir() and find(path) else None


def read(path: Path, hints: Hints | None = None) -> Contents:
    """What is in the folder. ``hints``: see :func:`optimizers.find`. Raises CheckpointUnreadable."""
    weights = read_weights(path)
    given, gaps = optimizers.given(path, [name for name in _OPTIMIZERS if (path / name).is_file()])
    weights.gaps += gaps
    found = (
        optimizers.find(path, given, weights.tensors, hints, ordered=weights.ordered) if given else optimizers.Found()
    )
    said = {**weights.values, **dict(_values(path, weights))}
    trainer, config = _json(path / TRAINER, weights), _json(path / CONFIG, weights)
    said |= {key: trainer[key] for key in ("epoch", "global_step") if key in trainer}
    ranks = {int(match[1]) for each in path.iterdir() if (match := _RANK.match(each.name))}
    step = said.get("global_step", weights.step)
    return Contents(
        format=Format.HUGGINGFACE, root=str(path), tensors=found.without_ties(weights.tensors),
        ties={**weights.ties, **found.ties},
        frozen=found.frozen, buffers=found.buffers, optimizer=found.optimizer,
        step=step if type(step) is int else found.step,
        world_size=len(ranks) or Unknown("the format does not say"),
        writer=_writer(config), values=said, files=files_in(path), notes=(*weights.notes, *found.notes),
        gaps=tuple(weights.gaps),
    )  # fmt: skip


def files_in(folder: Path) -> dict[str, int]:
    """The files that lie in it, with their sizes."""
    return {each.name: each.stat().st_size for each in sorted(folder.iterdir()) if each.is_file()}


def _values(path: Path, weights: Weights) -> Iterator[tuple[str, Any]]:
    for name, key in _STATES.items():
        if (path / name).is_file():
            try:
                file = torch_legacy.read(path / name)
                yield from values(Source(file, name), file.value, key)
            except CheckpointUnreadable as error:
                weights.gaps.append(gap_of(error, name, beside=True))


def _json(path: Path, weights: Weights) -> dict[str, Any]:
    """What a file of JSON says; empty where it is not there."""
    if not path.is_file() or path.stat().st_size > _MOST_JSON:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        why = f"it cannot be read: {error}"
        weights.gaps.append(gap_of(CheckpointUnreadable(path, why=why), path.name, beside=True))
        return {}


def _writer(config: Mapping[str, Any]) -> str:
    version = config.get("transformers_version", config.get("_diffusers_version"))
    return f"transformers {version}" if isinstance(version, str) else "transformers" if config else ""

"""Reads Hugging Face folders: weights, configuration, and the Trainer's states.

    config.json · model.safetensors                                     one file
    config.json · model-00001-of-00002.safetensors · ….index.json       shards (older: .bin)
    optimizer.pt · scheduler.pt · trainer_state.json · rng_state_0.pth  ``transformers.Trainer``

File names: transformers (utils/__init__.py, trainer.py), diffusers, peft.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ckpt.contents import CheckpointContents, CheckpointFormat
from holdfast.ckpt.files import torch_legacy
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.ckpt.formats.weight_files import (
    ModelWeights,
    file_sizes,
    find_weight_sets,
    read_weights,
)
from holdfast.ckpt.state_dicts import optimizers
from holdfast.ckpt.state_dicts.optimizer_params import MappingHints
from holdfast.ckpt.state_dicts.values import TorchSource, flatten_values
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown

CONFIG, TRAINER = "config.json", "trainer_state.json"
_MAX_JSON_BYTES = 64 << 20
_RANK = re.compile(r"rng_state_(\d+)\.pth\Z")
_OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
_STATES = {"scheduler.pt": "scheduler", "scaler.pt": "scaler"}


def detect_format(path: Path) -> CheckpointFormat | None:
    """Recognize a folder with weights under a Hugging Face file name."""
    return CheckpointFormat.HUGGINGFACE if path.is_dir() and find_weight_sets(path) else None


def read_contents(path: Path, hints: MappingHints | None = None) -> CheckpointContents:
    """Return the contents; ``hints``: see :func:`optimizers.merge_optimizers`.

    Raises:
        CheckpointUnreadable: no weights can be read.
    """
    weights = read_weights(path)
    states, problems = optimizers.read_optimizer_states(
        path, [name for name in _OPTIMIZERS if (path / name).is_file()]
    )
    weights.problems += problems
    optimizer = (
        optimizers.merge_optimizers(path, states, weights.tensors, hints, ordered=weights.ordered)
        if states
        else optimizers.OptimizerResult()
    )
    extra_values = {**weights.values, **dict(_read_values(path, weights))}
    trainer, config = _read_json(path / TRAINER, weights), _read_json(path / CONFIG, weights)
    extra_values |= {key: trainer[key] for key in ("epoch", "global_step") if key in trainer}
    ranks = {int(match[1]) for entry in path.iterdir() if (match := _RANK.match(entry.name))}
    step = extra_values.get("global_step", weights.step)
    return CheckpointContents(
        format=CheckpointFormat.HUGGINGFACE,
        root=str(path),
        tensors=optimizer.without_ties(weights.tensors),
        ties={**weights.ties, **optimizer.ties},
        frozen=optimizer.frozen,
        buffers=optimizer.buffers,
        optimizer=optimizer.optimizer,
        step=step if type(step) is int else optimizer.step,
        world_size=len(ranks) or Unknown("not recorded in this format"),
        writer=_writer(config),
        values=extra_values,
        files=file_sizes(path),
        notes=(*weights.notes, *optimizer.notes),
        problems=tuple(weights.problems),
    )


def _read_values(path: Path, weights: ModelWeights) -> Iterator[tuple[str, Any]]:
    for name, key in _STATES.items():
        if (path / name).is_file():
            try:
                file = torch_legacy.read_torch_file(path / name)
                yield from flatten_values(TorchSource(file, name), file.value, key)
            except CheckpointUnreadable as error:
                weights.problems.append(problem_of(error, name, beside=True))


def _read_json(path: Path, weights: ModelWeights) -> dict[str, Any]:
    """Return the content of a JSON file; empty if it does not exist."""
    if not path.is_file() or path.stat().st_size > _MAX_JSON_BYTES:
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        why = f"invalid JSON: {error}"
        weights.problems.append(
            problem_of(CheckpointUnreadable(path, why=why), path.name, beside=True)
        )
        return {}


def _writer(config: Mapping[str, Any]) -> str:
    version = config.get("transformers_version", config.get("_diffusers_version"))
    return (
        f"transformers {version}" if isinstance(version, str) else "transformers" if config else ""
    )

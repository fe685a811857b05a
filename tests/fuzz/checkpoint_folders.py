"""Targets for untrusted checkpoint folders: one file of a small folder of each format is replaced."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import shutil
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

from holdfast.ckpt.convert import pickles
from holdfast.ckpt.convert.writers.dcp_index import StoredChunk, WrittenIndexEntry, build_index
from holdfast.ckpt.formats import registry
from holdfast.ckpt.rules.verify import judge_checkpoint
from holdfast.ckpt.verify.survey import survey_checkpoint
from holdfast.core.errors import CheckpointUnreadable

_ROOT = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
atexit.register(shutil.rmtree, _ROOT, ignore_errors=True)


def _tensor(key: int, numel: int) -> Any:
    return pickles.pickled_tensor(pickles.StorageReference("float32", str(key), numel), (numel,))


def _archive(value: Any, *sizes: int) -> bytes:
    """Return a torch.save file whose record ``data/<n>`` has ``sizes[n]`` float32 values."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickles.dumps(value))
        for number, size in enumerate(sizes):
            archive.writestr(f"archive/data/{number}", bytes(4 * size))
    return stream.getvalue()


def _zero() -> dict[str, bytes]:
    """Return a ZeRO-3 tag of one rank: one parameter of six elements."""
    state = {0: {"step": 3.0, "exp_avg": _tensor(0, 6), "exp_avg_sq": _tensor(1, 6)}}
    base = {"state": state, "param_groups": [{"lr": 0.1, "params": [0]}]}
    optimizer = {"zero_stage": 3, "partition_count": 1, "fp32_flat_groups": [_tensor(2, 6)]}
    size = pickles.ReducedCall(pickles.stand_in_class("torch", "Size"), ((2, 3),))
    model = {
        "module": OrderedDict(w=_tensor(0, 0)),
        "buffer_names": [],
        "param_shapes": [OrderedDict(w=size)],
        "frozen_param_shapes": None,
        "frozen_param_fragments": {},
        "shared_params": {},
        "global_steps": 3,
        "dp_world_size": 1,
        "ds_version": "0.19",
    }
    first = "zero_pp_rank_0_mp_rank_00_"
    return {
        f"{first}optim_states.pt": _archive(
            {"optimizer_state_dict": {**optimizer, "optimizer_state_dict": base}}, 6, 6, 6
        ),
        f"{first}model_states.pt": _archive(model, 0),
    }


def _dcp() -> dict[str, bytes]:
    """Return a DCP folder of a weight, its step and the optimizer's group."""
    blobs = [_archive(_tensor(0, 6), 6), _archive(3), _archive(["w"])]
    starts = [0, len(blobs[0]), len(blobs[0]) + len(blobs[1])]
    file = "__0_0.distcp"
    entries = [
        WrittenIndexEntry(
            path, dtype, shape, (StoredChunk((0,) * len(shape), shape, file, start, len(blob)),)
        )
        for path, dtype, shape, start, blob in zip(
            (
                ("model", "w"),
                ("optimizer", "state", "w", "step"),
                ("optimizer", "param_groups", 0, "params"),
            ),
            ("float32", "", ""),
            ((6,), (), ()),
            starts,
            blobs,
            strict=True,
        )
    ]
    return {".metadata": build_index(entries), file: b"".join(blobs)}


def _optimizer() -> bytes:
    state = {0: {"step": 3, "exp_avg": _tensor(0, 6)}}
    return _archive({"state": state, "param_groups": [{"lr": 0.1, "params": [0]}]}, 6)


def _folders() -> dict[str, dict[str, bytes]]:
    weights = _archive(OrderedDict(w=_tensor(0, 6)), 6)
    random_states = _archive({"step": 0})
    lightning = {"pytorch-lightning_version": "2.2.0", "global_step": 3, "epoch": 1}
    index = {"weight_map": {"w": "pytorch_model-00001-of-00001.bin"}}
    return {
        "zero3": _zero(),
        "dcp": _dcp(),
        "lightning-sharded": {**_dcp(), "meta.pt": _archive(lightning)},
        "accelerate": {
            "pytorch_model.bin": weights,
            "optimizer.bin": _optimizer(),
            "scheduler.bin": _archive({"last_epoch": 3, "_step_count": 4}),
            "random_states_0.pkl": random_states,
            "random_states_1.pkl": random_states,
        },
        "huggingface": {
            "config.json": b'{"model_type": "llama"}',
            "pytorch_model.bin.index.json": json.dumps(index).encode(),
            "pytorch_model-00001-of-00001.bin": weights,
            "optimizer.pt": _optimizer(),
        },
        "lightning": {
            "last.ckpt": _archive({**lightning, "state_dict": {"w": _tensor(0, 6)}, "loops": {}}, 6)
        },
    }


_FOLDERS = _folders()
#: Every file of every folder; the first byte of the input selects one.
_SLOTS = [(folder, file) for folder, files in _FOLDERS.items() for file in files]
for _folder, _files in _FOLDERS.items():
    (_ROOT / _folder).mkdir()
    for _file, _content in _files.items():
        (_ROOT / _folder / _file).write_bytes(_content)


def checkpoint_folders(data: bytes) -> None:
    """Verify a folder with this file in it, or reject it with CheckpointUnreadable."""
    if not data:
        return
    folder, file = _SLOTS[data[0] % len(_SLOTS)]
    path = _ROOT / folder / file
    path.write_bytes(data[1:])
    try:
        with contextlib.suppress(CheckpointUnreadable):
            judge_checkpoint(survey_checkpoint(registry.read_checkpoint(_ROOT / folder)))
    finally:
        path.write_bytes(_FOLDERS[folder][file])


TARGETS = {
    "checkpoint-folder": (
        checkpoint_folders,
        [bytes([slot]) + _FOLDERS[folder][file] for slot, (folder, file) in enumerate(_SLOTS)],
    )
}

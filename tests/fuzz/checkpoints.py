"""Targets for untrusted checkpoints: torch pickles and archives, safetensors, DCP indexes."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import pickle
import shutil
import struct
import tempfile
import zipfile
from collections import OrderedDict
from pathlib import Path

import msgspec

from holdfast.ckpt.convert import pickles
from holdfast.ckpt.convert.writers.dcp_index import StoredChunk, WrittenIndexEntry, build_index
from holdfast.ckpt.files import torch_pickle
from holdfast.ckpt.formats import registry
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.ckpt.verify.survey import survey_checkpoint
from holdfast.core.errors import CheckpointUnreadable

_DCP = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
atexit.register(shutil.rmtree, _DCP, ignore_errors=True)
_FILE = Path(f"/proc/self/fd/{os.memfd_create('checkpoint')}")
#: Largest tensor that is read: a shape may have any size.
_MAX_TENSOR_BYTES = 1 << 16


def torch_pickles(data: bytes) -> None:
    """Load a pickle without running its code, or reject it with a one-line message."""
    try:
        loaded = torch_pickle.loads(data)
    except (torch_pickle.PickleUnreadable, torch_pickle.GlobalRefused) as error:
        assert "\n" not in str(error)  # noqa: PT017 - raised by the fuzzed function
        return
    assert isinstance(loaded, torch_pickle.LoadedPickle)


def checkpoint_files(data: bytes) -> None:
    """Read a file of any format with its tensors, or reject it with CheckpointUnreadable."""
    _FILE.write_bytes(data)
    with contextlib.suppress(CheckpointUnreadable):
        contents = registry.read_checkpoint(_FILE)
        with TensorReader(_FILE) as reader:
            for tensor in contents.tensors.values():
                if tensor.size <= _MAX_TENSOR_BYTES:
                    assert reader.read_tensor(tensor).shape == tensor.shape
        survey_checkpoint(contents)


def dcp_indexes(data: bytes) -> None:
    """Read a DCP folder with this index, verify its coverage, or reject it."""
    (_DCP / ".metadata").write_bytes(data)
    with contextlib.suppress(CheckpointUnreadable):
        survey = survey_checkpoint(registry.read_checkpoint(_DCP))
        assert survey.tensors >= len(survey.contents.tensors)


def _index() -> bytes:
    """Return the index of one tensor of six elements in ``__0_0.distcp``."""
    chunk = StoredChunk((0, 0), (2, 3), "__0_0.distcp", 0, len(_saved()))
    return build_index([WrittenIndexEntry(("model", "w"), "float32", (2, 3), (chunk,))])


def _saved(strides: tuple[int, int] = (3, 1)) -> bytes:
    """Return a torch.save file with a state dict, a step and an object."""
    weight = pickles.pickled_tensor(pickles.StorageReference("float32", "0", 6), (2, 3))
    arguments = (*weight.arguments[:3], strides, *weight.arguments[4:])
    weight = msgspec.structs.replace(weight, arguments=arguments)
    half = pickles.pickled_tensor(pickles.StorageReference("bfloat16", "1", 4), (4,))
    args = pickles.stand_in_instance(pickles.stand_in_class("argparse", "Namespace"), {"lr": 0.1})
    value = {"model": OrderedDict(weight=weight, bias=half), "step": 3, "args": args}
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("archive/data.pkl", pickles.dumps(value))
        archive.writestr("archive/byteorder", b"little")
        archive.writestr("archive/data/0", bytes(24))
        archive.writestr("archive/data/1", bytes(8))
    return stream.getvalue()


def _safetensors() -> bytes:
    header = json.dumps(
        {
            "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
            "__metadata__": {"format": "pt"},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


TARGETS = {
    "torch-pickle": (
        torch_pickles,
        [
            pickle.dumps({"step": 3, "betas": (0.9, 0.999), "names": ["a"]}, 2),
            pickles.dumps(
                {"w": pickles.pickled_tensor(pickles.StorageReference("float32", "0", 6), (2, 3))}
            ),
            b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.",
        ],
    ),
    "checkpoint": (checkpoint_files, [_saved(), _saved((0, 1)), _saved((0, 0)), _safetensors()]),
    "dcp-index": (dcp_indexes, [_index()]),
}

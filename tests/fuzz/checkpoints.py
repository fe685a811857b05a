"""Targets for untrusted checkpoints: torch pickles and archives, safetensors, DCP indexes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

from holdfast.ckpt.convert import pickles
from holdfast.ckpt.files import torch_pickle
from holdfast.ckpt.formats import registry
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import CheckpointUnreadable

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


def _saved() -> bytes:
    """Return a torch.save file with a state dict, a step and an object."""
    weight = pickles.pickled_tensor(pickles.StorageReference("float32", "0", 6), (2, 3))
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
    "checkpoint": (checkpoint_files, [_saved(), _safetensors()]),
}

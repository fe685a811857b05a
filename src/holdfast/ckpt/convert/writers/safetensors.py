"""Writes safetensors: one file, or several with an index if the weights exceed the maximum.

Format: safetensors' README (length, JSON header, data without gaps); index and shard names:
huggingface_hub (serialization/_base.py). Aliases of tied weights are stored in the header's
metadata as by ``safetensors.torch.save_model``, so that ``load_model`` restores them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from holdfast.ckpt.contents import ITEMSIZE, CheckpointContents, Tensor
from holdfast.ckpt.convert.files import Part, TargetFile, TargetFiles, whole_tensor
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import state_dicts
from holdfast.ckpt.files import safetensors_files

STEM = "model"
INDEX = f"{STEM}.safetensors.index.json"
#: safetensors dtype names by torch dtype names.
DTYPES: Mapping[str, str] = {ours: theirs for theirs, ours in safetensors_files.DTYPES.items()}
#: The header is padded so that data starts at a multiple of this.
_ALIGNMENT = 8


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write one file, or a folder with files of at most ``options.shard_bytes`` and their index."""
    files, losses = weight_files(contents, options, single="")
    return TargetFiles(
        files,
        (*losses, *state_dicts.describe_losses(contents, options, optimizer=False, values=False)),
    )


def weight_files(
    contents: CheckpointContents, options: ConvertOptions, single: str = f"{STEM}.safetensors"
) -> tuple[tuple[TargetFile, ...], tuple[str, ...]]:
    """Return the weight files and the losses; ``single`` is the path of an only file."""
    supported = [
        tensor for tensor in contents.tensors.values() if options.weight_dtype(tensor) in DTYPES
    ]
    unsupported = [
        tensor for tensor in contents.tensors.values() if options.weight_dtype(tensor) not in DTYPES
    ]
    losses = tuple(
        f"{tensor.name} was not written: safetensors does not support {tensor.dtype}."
        for tensor in unsupported
    )
    names = {tensor.name for tensor in supported}
    metadata = {"step": str(contents.step)} if isinstance(contents.step, int) else {}
    metadata |= {name: first for name, first in contents.ties.items() if first in names}
    shards = list(_split_files(supported, options))
    if len(shards) == 1:
        return (TargetFile(single, _file_parts(supported, options, metadata)),), losses
    paths = [f"{STEM}-{at:05}-of-{len(shards):05}.safetensors" for at in range(1, len(shards) + 1)]
    files = [
        TargetFile(path, _file_parts(shard, options, {}))
        for path, shard in zip(paths, shards, strict=True)
    ]
    return (*files, TargetFile(INDEX, (_build_index(paths, shards, options, metadata),))), losses


def _tensor_bytes(tensor: Tensor, options: ConvertOptions) -> int:
    return tensor.numel * ITEMSIZE[options.weight_dtype(tensor)]


def _split_files(tensors: Sequence[Tensor], options: ConvertOptions) -> Iterator[list[Tensor]]:
    """Yield the tensors of each file, in order, as many as fit; at least one file."""
    shard: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if shard and size + _tensor_bytes(tensor, options) > options.shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += _tensor_bytes(tensor, options)
    yield shard


def _file_parts(
    tensors: Sequence[Tensor], options: ConvertOptions, metadata: Mapping[str, str]
) -> tuple[Part, ...]:
    """Return one file: header in model order, data with widest elements first for alignment."""
    by_alignment = sorted(tensors, key=lambda tensor: -ITEMSIZE[options.weight_dtype(tensor)])
    offsets, at = {}, 0
    for tensor in by_alignment:
        offsets[tensor.name] = [at, at + _tensor_bytes(tensor, options)]
        at += _tensor_bytes(tensor, options)
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    for tensor in tensors:
        dtype = DTYPES[options.weight_dtype(tensor)]
        header[tensor.name] = {
            "dtype": dtype,
            "shape": list(tensor.shape),
            "data_offsets": offsets[tensor.name],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    numbers = tuple(
        whole_tensor(tensor, options.weight_dtype(tensor))
        for tensor in by_alignment
        if tensor.numel
    )
    return (len(text).to_bytes(8, "little") + text, *numbers)


def _build_index(
    paths: Sequence[str],
    shards: Sequence[Sequence[Tensor]],
    options: ConvertOptions,
    metadata: Mapping[str, str],
) -> bytes:
    """Return the index: which file holds which tensor."""
    total = sum(_tensor_bytes(tensor, options) for shard in shards for tensor in shard)
    offsets = {
        tensor.name: path for path, shard in zip(paths, shards, strict=True) for tensor in shard
    }
    return (
        json.dumps(
            {"metadata": {"total_size": total, **metadata}, "weight_map": offsets}, indent=2
        ).encode()
        + b"\n"
    )

"""safetensors: one file, or several with an index where the weights are larger than one is to be.

The form is that of safetensors' own README (length, header in JSON, numbers without gaps); the index and the names of
shards are those of huggingface_hub (serialization/_base.py). Second names of tied weights stand in the header's
metadata, as ``safetensors.torch.save_model`` puts them there, so that ``load_model`` finds them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from holdfast.actions.conversion.files import File, Part, Written, whole
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import state_dicts
from holdfast.facts.checkpoints.contents import ITEMSIZE, Contents, Tensor
from holdfast.facts.checkpoints.files import safetensors_files

STEM = "model"
INDEX = f"{STEM}.safetensors.index.json"
#: The format's names of dtypes, by torch's.
DTYPES: Mapping[str, str] = {ours: theirs for theirs, ours in safetensors_files.DTYPES.items()}
#: The header is padded to it, so that numbers begin at a multiple of it.
_ALIGNMENT = 8


def write(contents: Contents, options: Options) -> Written:
    """One file, which is the target, or a folder of files of ``options.shard_bytes`` at most and their index."""
    files, losses = weights(contents, options, single="")
    return Written(files, (*losses, *state_dicts.left_out(contents, options, optimizer=False, values=False)))


def weights(
    contents: Contents, options: Options, single: str = f"{STEM}.safetensors"
) -> tuple[tuple[File, ...], tuple[str, ...]]:
    """The files of the weights, and what the format cannot hold; ``single`` is the path of a lone file."""
    held = [each for each in contents.tensors.values() if options.weight_dtype(each) in DTYPES]
    lost = [each for each in contents.tensors.values() if options.weight_dtype(each) not in DTYPES]
    losses = tuple(f"{each.name} is not in it: safetensors has no {each.dtype}." for each in lost)
    names = {each.name for each in held}
    about = {"step": str(contents.step)} if isinstance(contents.step, int) else {}
    about |= {name: first for name, first in contents.ties.items() if first in names}
    shards = list(_shards(held, options))
    if len(shards) == 1:
        return (File(single, _parts(held, options, about)),), losses
    paths = [f"{STEM}-{at:05}-of-{len(shards):05}.safetensors" for at in range(1, len(shards) + 1)]
    files = [File(path, _parts(shard, options, {})) for path, shard in zip(paths, shards, strict=True)]
    return (*files, File(INDEX, (_index(paths, shards, options, about),))), losses


def _size(tensor: Tensor, options: Options) -> int:
    return tensor.numel * ITEMSIZE[options.weight_dtype(tensor)]


def _shards(tensors: Sequence[Tensor], options: Options) -> Iterator[list[Tensor]]:
    """Which tensors one file holds: in their order, as many as fit; at least one file."""
    shard: list[Tensor] = []
    size = 0
    for each in tensors:
        if shard and size + _size(each, options) > options.shard_bytes:
            yield shard
            shard, size = [], 0
        shard.append(each)
        size += _size(each, options)
    yield shard


def _parts(tensors: Sequence[Tensor], options: Options, about: Mapping[str, str]) -> tuple[Part, ...]:
    """One file. The header has the model's order; numbers of wider elements stand first, so that all are aligned."""
    laid = sorted(tensors, key=lambda each: -ITEMSIZE[options.weight_dtype(each)])
    places, at = {}, 0
    for each in laid:
        places[each.name] = [at, at + _size(each, options)]
        at += _size(each, options)
    header: dict[str, object] = {"__metadata__": {"format": "pt", **about}}
    for each in tensors:
        dtype = DTYPES[options.weight_dtype(each)]
        header[each.name] = {"dtype": dtype, "shape": list(each.shape), "data_offsets": places[each.name]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    numbers = tuple(whole(each, options.weight_dtype(each)) for each in laid if each.numel)
    return (len(text).to_bytes(8, "little") + text, *numbers)


def _index(
    paths: Sequence[str], shards: Sequence[Sequence[Tensor]], options: Options, about: Mapping[str, str]
) -> bytes:
    """Which file holds which tensor."""
    total = sum(_size(each, options) for shard in shards for each in shard)
    places = {each.name: path for path, shard in zip(paths, shards, strict=True) for each in shard}
    return json.dumps({"metadata": {"total_size": total, **about}, "weight_map": places}, indent=2).encode() + b"\n"

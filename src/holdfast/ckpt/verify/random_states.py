"""Compares the random states of ranks, which Accelerate and the Trainer write into a file each.

Ranks have one seed, or a seed each; tensor parallel ranks have one per group. Two equal states
among different ones, or a different one among equal ones, is a file of another rank or save.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.ckpt.contents import CheckpointContents
from holdfast.ckpt.files import torch_legacy
from holdfast.ckpt.files.torch_pickle import TensorRef
from holdfast.ckpt.state_dicts.values import TorchSource, simplify
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.ckpt.verify.shard_names import files_by_kind
from holdfast.core.errors import CheckpointUnreadable

#: Keys of the states that a rank draws from on the host; those of GPUs depend on the node.
_KEYS = frozenset("random_state numpy_random_seed torch_manual_seed python numpy cpu torch".split())
_MIN_KEYS = 2


def group_random_states(contents: CheckpointContents) -> tuple[tuple[str, ...], ...]:
    """Return the files of ranks by equal random states, the largest group first; () if none."""
    root = Path(contents.root)
    for files in files_by_kind(contents):
        groups: dict[str, list[str]] = {}
        with TensorReader(root) as reader:
            for file in files:
                try:
                    read = torch_legacy.read_torch_file(root / file)
                    mark = _hash_states(TorchSource(read, file), reader, read.value)
                except CheckpointUnreadable:  # reported elsewhere
                    mark = ""
                if not mark:
                    break
                groups.setdefault(mark, []).append(file)
        if sum(map(len, groups.values())) == len(files):
            return tuple(sorted(map(tuple, groups.values()), key=len, reverse=True))
    return ()


def _hash_states(source: TorchSource, reader: TensorReader, value: Any) -> str:
    """Return a hash of the random states in a file; '' if it has none."""
    states = {key: value[key] for key in value if key in _KEYS} if _is_dict(value) else {}
    if len(states) < _MIN_KEYS:
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for key, state in sorted(states.items()):
        plain = simplify(source, state)
        if isinstance(plain, TensorRef):
            plain = reader.read_tensor(source.tensor(key, plain)).tobytes()
        digest.update(f"{key} {plain!r} ".encode())
    return digest.hexdigest()


def _is_dict(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)

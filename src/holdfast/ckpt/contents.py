"""The format-neutral model of a checkpoint: readers produce it, writers consume it.

    CheckpointContents ── tensors ── name ─▶ Tensor ── shards ─▶ TensorShard (file, offset, region)
                       └─ optimizer ── parameter ─▶ state (exp_avg) ─▶ Tensor

Names are those of ``model.named_parameters()`` and ``named_buffers()`` of the unwrapped module.
Readers keep wrapper prefixes; ``convert.names`` removes them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.core.findings import Unknown


class CheckpointFormat(StrEnum):
    """Checkpoint formats."""

    TORCH = "torch"
    SAFETENSORS = "safetensors"
    HUGGINGFACE = "huggingface"
    DCP = "dcp"
    HOLDFAST = "holdfast"
    FSDP1_LOCAL = "fsdp1-local"
    FSDP1_SHARDED = "fsdp1-sharded"
    FSDP2_SHARDED = "fsdp2-sharded"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    UNIVERSAL = "universal"
    MEGATRON = "megatron"
    ACCELERATE = "accelerate"
    LIGHTNING = "lightning"


class TensorShard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One part of a tensor, stored in one file.

    ``file`` is relative to the checkpoint root ('' if the root is the file); ``offset`` is the byte
    of the first element. If ``packed`` is not 0, an embedded torch.save file of ``packed`` bytes
    starts at ``offset`` and holds only this shard.

    A box shard covers ``shape`` elements of the tensor from index ``start`` on. A ``flat`` shard
    covers ``shape[0]`` elements of the flattened (row-major) tensor from ``start[0]`` on.
    ``strides`` are in elements; None: row-major without gaps.
    """

    file: str
    offset: int
    shape: tuple[int, ...]
    start: tuple[int, ...]
    flat: bool = False
    strides: tuple[int, ...] | None = None
    packed: int = 0

    @property
    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)


class Tensor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One complete tensor.

    ``dtype`` is torch's name without ``torch.`` (``bfloat16``); ``shape`` is the full shape.
    ``shards`` cover the tensor; overlapping shards are replicas. Empty if ``numel`` is 0.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    shards: tuple[TensorShard, ...]

    @property
    def numel(self) -> int:
        """Return the number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Return the size of the elements in bytes."""
        return self.numel * ITEMSIZE[self.dtype]


class ParamGroup(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer parameter group: parameter names and options (``lr``, ``betas``, ...)."""

    params: tuple[str, ...]
    options: Mapping[str, Any]


class OptimizerState(msgspec.Struct, frozen=True, kw_only=True):
    """Optimizer state by parameter name. ``numbers`` are scalar states such as ``step``."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    numbers: Mapping[str, Mapping[str, float | int]]
    groups: tuple[ParamGroup, ...]


class FileProblem(msgspec.Struct, frozen=True, kw_only=True):
    """A file or tensor that is missing, damaged or cannot be interpreted.

    ``kind``: missing, truncated, mixed, unreadable, refused, nameless. ``file`` is relative to the
    root; ``rank`` wrote it, if the name says so; ``why`` is one clause. ``refused``: a pickle that
    references names no checkpoint needs (listed in ``names``: ``os.system``). ``nameless``: the
    data is complete but does not say which parameters it contains. ``beside``: the file holds no
    model weights.
    """

    kind: str
    file: str
    why: str
    rank: int | None = None
    names: tuple[str, ...] = ()
    beside: bool = False


class CheckpointContents(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a checkpoint.

    ``tensors`` are the model's tensors by name, in fp32 if the checkpoint has fp32 weights;
    ``halves`` are then the model's own copies (16-bit; fp32 for DeepSpeed without mixed precision).
    ``ties`` maps an alias to the name of its tensor; ``frozen`` and ``buffers`` are names known to
    be frozen parameters and buffers.

    ``world_size`` ranks wrote it. ``values`` holds other plain data by path (``epoch``,
    ``scheduler.step``); other objects appear as ``torch_pickle.OpaqueObject``. ``files`` maps
    every file of the checkpoint to its size. ``notes`` are remarks for the user; ``problems``
    lists what is missing or damaged.
    """

    format: CheckpointFormat
    root: str
    tensors: Mapping[str, Tensor]
    halves: Mapping[str, Tensor] = {}
    ties: Mapping[str, str] = {}
    frozen: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    optimizer: OptimizerState | None = None
    step: int | Unknown = Unknown("not recorded in this format")
    world_size: int | Unknown = Unknown("not recorded in this format")
    writer: str = ""
    values: Mapping[str, Any] = {}
    files: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()
    problems: tuple[FileProblem, ...] = ()


#: How the note starts that says why the optimizer state of a checkpoint is not in its contents.
OPTIMIZER_OMITTED = "optimizer state omitted"

#: Element size in bytes, by torch dtype name.
ITEMSIZE: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
    "complex128": 16,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}

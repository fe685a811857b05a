"""The neutral form that every format of checkpoints is read into, and written from.

    Contents ── tensors ── name ─▶ Tensor ── pieces ─▶ Piece (file, offset, which part of the tensor)
             └─ optimizer ── name of a parameter ─▶ name of a state (exp_avg) ─▶ Tensor

A name is that of the parameter or buffer in the user's unwrapped module, as ``model.named_parameters()`` gives it;
what wrappers put in front is kept by the readers and taken off in ``wrappers``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.findings import Unknown


class Format(StrEnum):
    """What checkpoints are written in."""

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


class Piece(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of one tensor in one file.

    ``file`` is the path below the root ('' where the root is the file), ``offset`` the byte of its first element there;
    or, where ``packed`` is not 0, of a whole file of torch.save of so many bytes, which holds just this piece.
    A *box* covers ``shape`` elements of the tensor from index ``start`` on. A *flat* piece covers ``shape[0]`` elements
    from the ``start[0]``-th on, in row-major order. ``strides`` are in elements; None: row-major, without gaps.
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
        """Elements in it."""
        return math.prod(self.shape)


class Tensor(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One whole tensor: ``dtype`` is torch's name without ``torch.`` (``bfloat16``), ``shape`` that of the whole.

    ``pieces`` cover it; two that overlap are copies (replicas). Empty where ``numel`` is 0.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def numel(self) -> int:
        """Elements in it; 1 for one without dimensions."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes of its elements."""
        return self.numel * ITEMSIZE[self.dtype]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter group of an optimizer: the names of its parameters, and its options (``lr``, ``betas``, ...)."""

    params: tuple[str, ...]
    options: Mapping[str, Any]


class Optimizer(msgspec.Struct, frozen=True, kw_only=True):
    """The optimizer's state by names of parameters; ``numbers`` are states that are no tensor of size (``step``)."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    numbers: Mapping[str, Mapping[str, float | int]]
    groups: tuple[Group, ...]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Something that ought to be there and is not whole.

    ``kind``: missing, truncated, mixed, unreadable, refused, nameless.
    ``file`` is the path below the root, ``rank`` who wrote it where the name says so, ``why`` one clause of a sentence.
    ``refused`` is a pickle that names what no checkpoint needs (``names`` has it: ``os.system``). ``nameless`` is
    whole, but does not say which parameters are in it, so that nothing else can be made of it. ``beside`` the model:
    no weight is touched by it.
    """

    kind: str
    file: str
    why: str
    rank: int | None = None
    names: tuple[str, ...] = ()
    beside: bool = False


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a checkpoint. Tensors of the model by name; fp32 ones where there are some, ``halves`` their copies.

    ``ties`` are names that stand for the tensor of another name; ``frozen`` and ``buffers`` the names that are known to
    be such. ``halves`` are in fp32 where the format keeps that twice (DeepSpeed without mixed precision).

    ``world_size`` ranks wrote it. ``values`` is other plain data by its path (``epoch``, ``scheduler.step``); what is
    not plain stands there as an ``Opaque`` of ``torch_pickle``. ``files`` has the size of every file that belongs to
    it. ``notes`` are sentences for people about what was found; ``gaps`` what is not whole.
    """

    format: Format
    root: str
    tensors: Mapping[str, Tensor]
    halves: Mapping[str, Tensor] = {}
    ties: Mapping[str, str] = {}
    frozen: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    optimizer: Optimizer | None = None
    step: int | Unknown = Unknown("the format does not say")
    world_size: int | Unknown = Unknown("the format does not say")
    writer: str = ""
    values: Mapping[str, Any] = {}
    files: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()


#: Bytes of one element, by torch's names.
ITEMSIZE: Mapping[str, int] = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1,
}  # fmt: skip

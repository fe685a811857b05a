"""Options of a conversion."""

from __future__ import annotations

import msgspec

from holdfast.ckpt.contents import Tensor

#: Hugging Face's default for one file of a sharded model.
SHARD_BYTES = 5_000_000_000

#: Dtypes that ``dtype`` casts; 8-bit values are meaningless without their scales.
CASTABLE = frozenset({"float64", "float32", "float16", "bfloat16"})


class ConvertOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the target; a writer uses those that apply.

    ``ranks``: data-parallel ranks of a sharded format. ``dtype``: dtype of the weights; None:
    unchanged. ``shard_bytes``: maximum file size if there are several. ``optimizer``: write its
    state, if both formats support it. ``tag``: DeepSpeed's tag folder, named in ``latest``.
    ``form``: variant of the format, one of the writer's FORMS; '' is the first. ``optimizer_key``:
    key of the optimizer in DCP.
    """

    ranks: int = 1
    dtype: str | None = None
    shard_bytes: int = SHARD_BYTES
    optimizer: bool = True
    tag: str = ""
    form: str = ""
    optimizer_key: str = "optimizer"

    def weight_dtype(self, tensor: Tensor) -> str:
        """Return the dtype in which a weight or buffer is written."""
        return self.dtype if self.dtype and tensor.dtype in CASTABLE else tensor.dtype

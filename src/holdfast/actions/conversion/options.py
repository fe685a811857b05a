"""What a conversion is asked for."""

from __future__ import annotations

import msgspec

from holdfast.facts.checkpoints.contents import Tensor

#: Hugging Face's own default for one file of a sharded model.
SHARD_BYTES = 5_000_000_000

#: Numbers that a dtype that was asked for is meant for. Those of 8 bits mean nothing without their scales.
CASTABLE = frozenset({"float64", "float32", "float16", "bfloat16"})


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How the target is to be; a writer takes what concerns it.

    ``ranks``: for how many data-parallel ranks a sharded format is written. ``dtype``: that of the weights; None: as
    they are. ``shard_bytes``: the most bytes of one file where there are several. ``optimizer``: it is written, too,
    where both sides can hold it. ``tag``: the name of the folder that DeepSpeed's ``latest`` names. ``form``: which of
    its forms a format is written in that has several; a writer names them in FORMS, '' is the first of them.
    """

    ranks: int = 1
    dtype: str | None = None
    shard_bytes: int = SHARD_BYTES
    optimizer: bool = True
    tag: str = ""
    form: str = ""

    def weight_dtype(self, tensor: Tensor) -> str:
        """The dtype in which a weight or buffer is written: the one that was asked for, if it is of a castable one."""
        return self.dtype if self.dtype and tensor.dtype in CASTABLE else tensor.dtype

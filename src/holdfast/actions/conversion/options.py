"""What a conversion is asked for."""

from __future__ import annotations

import msgspec

#: Hugging Face's own default for one file of a sharded model.
SHARD_BYTES = 5_000_000_000


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How the target is to be; a writer takes what concerns it.

    ``ranks``: for how many data-parallel ranks a sharded format is written. ``dtype``: that of the weights; None: as
    they are. ``shard_bytes``: the most bytes of one file where there are several. ``optimizer``: it is written, too,
    where both sides can hold it. ``tag``: the name of the folder that DeepSpeed's ``latest`` names.
    """

    ranks: int = 1
    dtype: str | None = None
    shard_bytes: int = SHARD_BYTES
    optimizer: bool = True
    tag: str = ""

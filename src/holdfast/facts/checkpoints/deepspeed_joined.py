"""Tensor- and pipeline-parallel ranks of a DeepSpeed checkpoint, put together."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.facts.checkpoints.contents import Gap
from holdfast.facts.checkpoints.deepspeed_files import Shard
from holdfast.facts.checkpoints.deepspeed_share import Share


def joined(shares: Sequence[Share], shards: Sequence[Shard]) -> tuple[Share, list[Gap]]:
    """What all of them have together."""
    if len(shares) > 1:
        why = f"its parameters are divided over {len(shares):,} tensor- or pipeline-parallel ranks"
        return shares[0], [Gap(kind="unreadable", file=each.file, why=why) for each in shards if each.place[0]]
    return shares[0], []

"""Limits what a checkpoint may claim by the bytes that exist, so that reading it stays bounded.

A small file can describe 10^6 tensors, or tensors of 2^80 elements. Descriptions and tensors cost
memory and time per item, not per byte, so both limits grow with the size of the files: real
checkpoints stay far below them.
"""

from __future__ import annotations

from holdfast.ckpt.contents import ITEMSIZE, CheckpointContents, Tensor, TensorShard
from holdfast.core.errors import CheckpointUnreadable
from holdfast.report.evidence_summary import size_text

#: 100,000 tensors take about 7 s and 290 MB.
_MAX_TENSORS, _BYTES_PER_TENSOR = 1 << 17, 4096
#: A description of 100,000 tensors has about 20 MB; its objects take ten times as much memory.
_MAX_DESCRIPTION_BYTES, _DATA_PER_DESCRIPTION = 32 << 20, 16
#: Tied weights and replicas refer to the same bytes several times.
_MAX_REFERENCES, _SMALL_BYTES = 16, 64 << 20


def tensor_limit(size: int) -> int:
    """Return how many tensors files of ``size`` bytes may describe."""
    return _MAX_TENSORS + size // _BYTES_PER_TENSOR


def too_many_tensors(count: int, size: int) -> str:
    """Return why files of ``size`` bytes with ``count`` tensors are refused."""
    return (
        f"it describes {count:,} tensors in {size_text(size)}; "
        f"at most {tensor_limit(size):,} are read"
    )


def description_limit(size: int) -> int:
    """Return how many bytes a pickle may have that describes files of ``size`` bytes."""
    return _MAX_DESCRIPTION_BYTES + size // _DATA_PER_DESCRIPTION


def check_contents(contents: CheckpointContents) -> None:
    """Check that the tensors are not larger than their files allow (``torch.Tensor.expand``).

    Raises:
        CheckpointUnreadable: they are.
    """
    optimizer = contents.optimizer.tensors.values() if contents.optimizer else ()
    total = sum(
        _existing_bytes(contents, tensor)
        for tensors in (contents.tensors, contents.halves, *optimizer)
        for tensor in tensors.values()
    )
    stored = sum(contents.files.values())
    if total > _MAX_REFERENCES * stored + _SMALL_BYTES:
        raise CheckpointUnreadable(
            contents.root,
            why=f"its tensors have {size_text(total)}, but its files have only "
            f"{size_text(stored)}: expanded tensors, or sizes that are wrong",
            next_step="save copies of expanded tensors (tensor.contiguous()), if it is your own",
        )


def _existing_bytes(contents: CheckpointContents, tensor: Tensor) -> int:
    """Return the bytes of the shards that start within a file; missing ones cost nothing."""
    itemsize = ITEMSIZE[tensor.dtype]
    return sum(
        shard.numel * itemsize for shard in tensor.shards if _starts_in_file(contents, shard)
    )


def _starts_in_file(contents: CheckpointContents, shard: TensorShard) -> bool:
    return shard.offset < contents.files.get(shard.file, 0)

"""Classifies untrained tensors as frozen parameters or buffers where the format does not.

FSDP shards every parameter along its first dimension, and never a buffer. If nothing is sharded,
names ending in weight or bias count as parameters, as for torch.save files.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.ckpt.contents import OptimizerState, Tensor

_FLOATS = ("float", "bfloat", "complex")
_PARAMETERS = ("weight", "bias")


def classify_parameters(
    tensors: Mapping[str, Tensor], optimizer: OptimizerState | None
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of frozen parameters and of buffers.

    Both are empty without optimizer groups.
    """
    trained = (
        {name for group in optimizer.groups for name in group.params}
        if optimizer is not None
        else set()
    )
    rest = {name: tensor for name, tensor in tensors.items() if name not in trained}
    if len(rest) == len(tensors):
        return frozenset(), frozenset()
    candidates = [
        tensor for name, tensor in tensors.items() if name in trained and tensor.shape[:1] > (1,)
    ]
    sharded = bool(candidates) and all(len(tensor.shards) > 1 for tensor in candidates)
    frozen = {name for name, tensor in rest.items() if _is_parameter(tensor, sharded=sharded)}
    return frozenset(frozen), frozenset(rest) - frozen


def _is_parameter(tensor: Tensor, *, sharded: bool) -> bool:
    if sharded and tensor.shape[:1] > (1,):
        return len(tensor.shards) > 1
    return tensor.dtype.startswith(_FLOATS) and tensor.name.endswith(_PARAMETERS)

"""Which tensors are frozen parameters and which are buffers, in formats that do not say so.

FSDP divides every parameter along its first dimension over the ranks, and never a buffer. Where nothing is divided,
what is called a weight or a bias is taken for a parameter, as in files of torch.save.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.facts.checkpoints.contents import Optimizer, Tensor

_FLOATS = ("float", "bfloat", "complex")
_PARAMETERS = ("weight", "bias")


def found(tensors: Mapping[str, Tensor], optimizer: Optimizer | None) -> tuple[frozenset[str], frozenset[str]]:
    """The names of frozen parameters, and those of buffers; without groups of an optimizer nobody knows."""
    trained = {name for group in optimizer.groups for name in group.params} if optimizer is not None else set()
    rest = {name: tensor for name, tensor in tensors.items() if name not in trained}
    if len(rest) == len(tensors):
        return frozenset(), frozenset()
    several = [tensor for name, tensor in tensors.items() if name in trained and tensor.shape[:1] > (1,)]
    divided = bool(several) and all(len(tensor.pieces) > 1 for tensor in several)
    frozen = {name for name, tensor in rest.items() if _is_parameter(tensor, divided=divided)}
    return frozenset(frozen), frozenset(rest) - frozen


def _is_parameter(tensor: Tensor, *, divided: bool) -> bool:
    if divided and tensor.shape[:1] > (1,):
        return len(tensor.pieces) > 1
    return tensor.dtype.startswith(_FLOATS) and tensor.name.endswith(_PARAMETERS)

"""Counts what a module has, by part, type and layer; nothing is computed, so that it may stand on the meta device."""

from __future__ import annotations

from collections import Counter, defaultdict

from torch import nn

from holdfast.plan.described import Described, Part
from holdfast.runtime.footprint.shapes import transformer
from holdfast.runtime.footprint.stacks import stacks

#: A form whose weights are further from those of the module, as a share, is another one.
_OFF = 0.02


def describe(module: nn.Module, name: str = "") -> Described:
    """The numbers of any module, and its shape as a transformer where that is recognised."""
    name = name or type(module).__name__
    weights = dict(module.named_parameters())  # a tied one under its first name
    parts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    dtypes: Counter[str] = Counter()
    for path, weight in weights.items():
        part = parts[path.partition(".")[0]]
        part[0] += weight.numel()
        part[1] += weight.numel() if weight.requires_grad else 0
        dtypes[str(weight.dtype).removeprefix("torch.")] += weight.numel()
    found = stacks(module)
    shape, unknown = transformer(module, found)
    params = sum(weight.numel() for weight in weights.values())
    if shape is not None and abs(shape.params - params) > _OFF * params:
        off = f"as a transformer it would have {shape.params} weights, and it has {params}"
        shape, unknown = None, (*unknown, f"{off}: its activations are known from a run alone")
    return Described(
        name=name,
        params=params,
        trained=sum(weight.numel() for weight in weights.values() if weight.requires_grad),
        dtypes=dict(dtypes),
        buffers=sum(each.numel() * each.element_size() for each in module.buffers()),
        parts=tuple(Part(part, *counts) for part, counts in parts.items()),
        stacks=found,
        tied=_tied(module),
        edges=sum(sum(weight.shape) for weight in weights.values() if weight.dim() > 1),
        transformer=shape,
        own_norms=any(_own_norm(each) for each in module.modules()),
        dropout=any(isinstance(each, _DROPOUTS) and each.p > 0 for each in module.modules()),
        unknown=unknown,
    )


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def _own_norm(module: nn.Module) -> bool:
    """A root-mean-square norm that is written out, as Hugging Face's are: its operations keep copies in fp32."""
    return "rmsnorm" in type(module).__name__.casefold() and not isinstance(module, nn.RMSNorm)


def _tied(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    names: dict[int, list[str]] = defaultdict(list)
    for name, weight in module.named_parameters(remove_duplicate=False):
        names[id(weight)].append(name)
    return tuple(tuple(each) for each in names.values() if len(each) > 1)

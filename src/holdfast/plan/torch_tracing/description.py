"""Count parameters of a module by part, dtype and layer; works on the meta device."""

from __future__ import annotations

from collections import Counter, defaultdict

from torch import nn

from holdfast.plan.model_counts import ModulePart, ModuleSummary
from holdfast.plan.torch_tracing.repeated_layers import find_layer_stacks
from holdfast.plan.torch_tracing.shapes import recognize_transformer

#: A recognized shape is rejected if its parameter count deviates by more than this share.
_MAX_DEVIATION = 0.02


def summarize_module(module: nn.Module, name: str = "") -> ModuleSummary:
    """Summarize any module, with its shape if it is recognized as a transformer."""
    name = name or type(module).__name__
    weights = dict(module.named_parameters())  # tied ones appear under their first name
    parts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    dtypes: Counter[str] = Counter()
    for path, weight in weights.items():
        part = parts[path.partition(".")[0]]
        part[0] += weight.numel()
        part[1] += weight.numel() if weight.requires_grad else 0
        dtypes[str(weight.dtype).removeprefix("torch.")] += weight.numel()
    stacks = find_layer_stacks(module)
    shape, unknown = recognize_transformer(module, stacks)
    params = sum(weight.numel() for weight in weights.values())
    if shape is not None and abs(shape.params - params) > _MAX_DEVIATION * params:
        deviation = f"as a transformer it would have {shape.params} parameters, but it has {params}"
        shape, unknown = None, (*unknown, f"{deviation}: its activations require a simulated run")
    return ModuleSummary(
        name=name,
        params=params,
        trained=sum(weight.numel() for weight in weights.values() if weight.requires_grad),
        dtypes=dict(dtypes),
        buffers=sum(submodule.numel() * submodule.element_size() for submodule in module.buffers()),
        names=tuple(weights),
        parts=tuple(ModulePart(part, *counts) for part, counts in parts.items()),
        stacks=stacks,
        tied=_tied_names(module),
        factored_numbers=sum(sum(weight.shape) for weight in weights.values() if weight.dim() > 1),
        transformer=shape,
        unfused_norms=any(_is_unfused_norm(submodule) for submodule in module.modules()),
        dropout=any(
            isinstance(submodule, _DROPOUTS) and submodule.p > 0 for submodule in module.modules()
        ),
        unknown=unknown,
    )


_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)


def _is_unfused_norm(module: nn.Module) -> bool:
    """Return whether an RMS norm is unfused, so that its operations save fp32 copies.

    Hugging Face's norms are.
    """
    return "rmsnorm" in type(module).__name__.casefold() and not isinstance(module, nn.RMSNorm)


def _tied_names(module: nn.Module) -> tuple[tuple[str, ...], ...]:
    names: dict[int, list[str]] = defaultdict(list)
    for name, weight in module.named_parameters(remove_duplicate=False):
        names[id(weight)].append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)

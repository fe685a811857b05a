"""Recognize a transformer from its Hugging Face configuration or the shapes of its matrices.

Nothing is guessed that affects a sum. If matrices do not fit (attention and a feed-forward part
between an embedding and a head), the architecture is unknown, and the reason is returned. The
number of heads does not affect flash attention's sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from torch import nn

from holdfast.core.errors import HoldfastError
from holdfast.plan.model_counts import LayerStack
from holdfast.plan.models import Transformer, transformer_from_config
from holdfast.plan.torch_tracing.repeated_layers import get_layers

Recognition = tuple[Transformer | None, tuple[str, ...]]

#: Names of attention matrices in Hugging Face's models, torchtitan, nanoGPT, timm and torch.
_QUERIES = {"q", "wq", "q_proj", "query", "queries", "to_q", "q_lin"}
_KEYS = {"k", "wk", "k_proj", "key", "keys", "to_k", "k_lin"}
_VALUES = {"v", "wv", "v_proj", "value", "values", "to_v", "v_lin"}
_QKV = {"qkv", "c_attn", "wqkv", "query_key_value", "qkv_proj", "in_proj", "in_proj_weight"}
_OUTPUT = set(
    """
    o wo o_proj out_proj out_lin output proj c_proj dense to_out
    """.split()
)
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "nhead")
_KV_HEADS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "n_kv_head", "kv_heads")
_CONFIGS = ("config", "cfg", "args", "params", "model_args")


class _Matrix(NamedTuple):
    path: str
    in_features: int
    out_features: int
    has_bias: bool

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2].casefold()

    @property
    def in_attention(self) -> bool:
        known = self.name in _QUERIES | _KEYS | _VALUES | _QKV
        return known or self.name in ("o", "wo") or "attn" in self.path or "attention" in self.path


def recognize_transformer(module: nn.Module, stacks: tuple[LayerStack, ...]) -> Recognition:
    """Return the shape if the module is a transformer, and what is unknown."""
    if not stacks:
        return None, ("no stack of equal layers: its activations require a simulated run",)
    configured = _shape_from_config(module, stacks[0])
    if configured is not None:
        return configured, configured.assumed
    if len(stacks) > 1:
        rows = ", ".join(f"{stack.count} x {stack.layer}" for stack in stacks)
        return None, (
            f"several stacks of layers ({rows}): its activations require a simulated run",
        )
    try:
        return _shape_from_matrices(module, stacks[0])
    except _NotTransformer as error:
        return None, (
            (
                f"its layers are not recognized as a transformer's ({error}): activations require "
                "a simulated run"
            ),
        )


class _NotTransformer(Exception):
    """The reason why the module is not recognized."""


def _shape_from_config(module: nn.Module, stack: LayerStack) -> Transformer | None:
    config = getattr(module, "config", None)
    as_dict = getattr(config, "to_dict", None)
    if not callable(as_dict):
        return None
    try:
        config_dict = as_dict()
        shape = (
            transformer_from_config(config_dict, type(module).__name__)
            if isinstance(config_dict, Mapping)
            else None
        )
    except HoldfastError:
        return None
    return msgspec.structs.replace(shape, layers=stack.count) if shape is not None else None


def _shape_from_matrices(module: nn.Module, stack: LayerStack) -> Recognition:
    layer = get_layers(module, stack.path)[0]
    matrices = list(_matrices(layer))
    # The first one embeds tokens: positions may have more rows.
    embedding = next((item for item in module.modules() if isinstance(item, nn.Embedding)), None)
    if embedding is None:
        raise _NotTransformer("no embedding")
    vocab, hidden = embedding.weight.shape
    queries, keys = _attention_widths([item for item in matrices if item.in_attention], hidden)
    ffn, gated = _feed_forward_width([item for item in matrices if not item.in_attention], hidden)
    heads, kv_heads, assumed = _head_counts(module, layer, hidden, keys / queries)
    norms = [
        item
        for item in layer.modules()
        if "norm" in type(item).__name__.casefold() and _has_own_weights(item)
    ]
    attention = [item for item in matrices if item.in_attention]
    shape = Transformer(
        name=type(module).__name__,
        layers=stack.count,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_width=queries // heads,
        ffn=ffn,
        vocab=vocab,
        gated=gated,
        tied=_is_tied(module, embedding),
        qkv_bias=any(item.has_bias for item in attention if item.name not in _OUTPUT),
        bias=all(item.has_bias for item in matrices),
        norm_bias=any(getattr(item, "bias", None) is not None for item in norms),
        norms_a_layer=len(norms),
        positions=_count_positions(module, embedding),
        assumed=assumed,
    )
    return shape, assumed


def _has_own_weights(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _matrices(layer: nn.Module) -> Iterable[_Matrix]:
    """Yield the matrices of one layer; Hugging Face's ``Conv1D`` is a transposed linear layer."""
    for path, weight in layer.named_parameters():
        if weight.dim() < 2:
            continue
        if weight.dim() > 2:
            raise _NotTransformer(f"{path} has {weight.dim()} dimensions")
        owner, _, attribute = path.rpartition(".")
        holder = layer.get_submodule(owner)
        name = owner if attribute == "weight" else path
        is_transposed = type(holder).__name__ == "Conv1D"
        in_features, out_features = weight.shape if is_transposed else reversed(weight.shape)
        bias = getattr(
            holder, "bias" if attribute == "weight" else attribute.replace("weight", "bias"), None
        )
        yield _Matrix(name, in_features, out_features, isinstance(bias, nn.Parameter))


def _attention_widths(matrices: list[_Matrix], hidden: int) -> tuple[int, int]:
    """Return the width of all queries, and of all keys."""
    by_role = {
        role: [m for m in matrices if m.name in names]
        for role, names in (
            ("q", _QUERIES),
            ("k", _KEYS),
            ("v", _VALUES),
            ("qkv", _QKV),
            ("o", _OUTPUT),
        )
    }
    counts = {role: len(role_matrices) for role, role_matrices in by_role.items()}
    if sum(counts.values()) != len(matrices) or counts["o"] != 1:
        raise _NotTransformer(
            f"attention has {', '.join(m.path for m in matrices) or 'no matrices'}"
        )
    queries = by_role["o"][0].in_features
    if counts == {"q": 1, "k": 1, "v": 1, "qkv": 0, "o": 1}:
        keys, values = by_role["k"][0], by_role["v"][0]
        if (by_role["q"][0].out_features, keys.out_features) != (
            queries,
            values.out_features,
        ) or keys.in_features != hidden:
            raise _NotTransformer("widths of queries, keys and values do not match")
        return queries, keys.out_features
    if counts != {"q": 0, "k": 0, "v": 0, "qkv": 1, "o": 1}:
        raise _NotTransformer(f"attention has {', '.join(m.path for m in matrices)}")
    key_value_width = by_role["qkv"][0].out_features - queries
    if key_value_width <= 0 or key_value_width % 2 or key_value_width // 2 > queries:
        raise _NotTransformer(
            f"{by_role['qkv'][0].path} has width {key_value_width + queries}, queries {queries}"
        )
    return queries, key_value_width // 2


def _feed_forward_width(matrices: list[_Matrix], hidden: int) -> tuple[int, bool]:
    """Return the feed-forward size, and whether it is gated.

    Two input matrices of one size, or one of twice the size, form a gate.
    """
    outputs = [
        matrix
        for matrix in matrices
        if matrix.out_features == hidden
        and (matrix.in_features != hidden or matrix is matrices[-1])
    ]
    inputs = [
        matrix for matrix in matrices if matrix not in outputs and matrix.in_features == hidden
    ]
    paths = ", ".join(matrix.path for matrix in matrices) or "no matrices"
    if len(outputs) != 1 or len(inputs) + 1 != len(matrices):
        raise _NotTransformer(f"unexpected matrices beside attention: {paths}")
    ffn = outputs[0].in_features
    widths = [matrix.out_features for matrix in inputs]
    if widths in ([ffn, ffn], [2 * ffn]):
        return ffn, True
    if widths == [ffn]:
        return ffn, False
    raise _NotTransformer(f"unexpected matrices beside attention: {paths}")


def _head_counts(
    module: nn.Module, layer: nn.Module, hidden: int, ratio: float
) -> tuple[int, int, tuple[str, ...]]:
    """Return query and key-value heads from attributes of modules or a configuration."""
    holders: list[Any] = [*layer.modules(), *(getattr(module, name, None) for name in _CONFIGS)]
    heads = _first_int(holders, _HEADS)
    if heads is None or not 0 < heads <= hidden:
        heads = max(1, hidden // 64)
        return (
            heads,
            max(1, round(heads * ratio)),
            (f"{heads} heads of width 64: the number of heads is not specified",),
        )
    return heads, _first_int(holders, _KV_HEADS) or max(1, round(heads * ratio)), ()


def _first_int(holders: Iterable[Any], names: Iterable[str]) -> int | None:
    for holder in holders:
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _is_tied(module: nn.Module, embedding: nn.Embedding) -> bool:
    """Return whether the head's weight is the embedding's."""
    return (
        sum(w is embedding.weight for _, w in module.named_parameters(remove_duplicate=False)) > 1
    )


def _count_positions(module: nn.Module, embedding: nn.Embedding) -> int:
    """Return the learned positions: another embedding of the same width."""
    others = (m for m in module.modules() if isinstance(m, nn.Embedding) and m is not embedding)
    return sum(m.num_embeddings for m in others if m.embedding_dim == embedding.embedding_dim)

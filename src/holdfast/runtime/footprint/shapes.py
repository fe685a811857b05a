"""Recognises a transformer: from the configuration that a Hugging Face model carries, or from its matrices' shapes.

Nothing is guessed that would change a sum: matrices that do not fit the form (attention and a feed-forward part between
an embedding and a head) mean that the form is not known, and why is said. Heads change no sum of a flash attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.plan.described import Stack
from holdfast.plan.models import Transformer, from_config
from holdfast.runtime.footprint.stacks import layers_at

Found = tuple[Transformer | None, tuple[str, ...]]

#: What the matrices of attention are called, in Hugging Face's models, torchtitan, nanoGPT, timm and torch itself.
_QUERIES = {"q", "wq", "q_proj", "query", "queries", "to_q", "q_lin"}
_KEYS = {"k", "wk", "k_proj", "key", "keys", "to_k", "k_lin"}
_VALUES = {"v", "wv", "v_proj", "value", "values", "to_v", "v_lin"}
_TOGETHER = {"qkv", "c_attn", "wqkv", "query_key_value", "qkv_proj", "in_proj", "in_proj_weight"}
_OUTPUT = {"o", "wo", "o_proj", "out_proj", "out_lin", "output", "proj", "c_proj", "dense", "to_out"}
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "nhead")
_KV_HEADS = ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "n_kv_head", "kv_heads")
_CONFIGS = ("config", "cfg", "args", "params", "model_args")


class _Matrix(NamedTuple):
    path: str
    into: int
    out: int
    biased: bool

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2].casefold()

    @property
    def in_attention(self) -> bool:
        known = self.name in _QUERIES | _KEYS | _VALUES | _TOGETHER
        return known or self.name in ("o", "wo") or "attn" in self.path or "attention" in self.path


def transformer(module: nn.Module, stacks: tuple[Stack, ...]) -> Found:
    """The shape where the module has that of one, and what is not known."""
    if not stacks:
        return None, ("there is no row of equal layers, so its activations are known from a run alone",)
    configured = _from_config(module, stacks[0])
    if configured is not None:
        return configured, configured.assumed
    if len(stacks) > 1:
        rows = ", ".join(f"{stack.count} x {stack.layer}" for stack in stacks)
        return None, (f"there are several rows of layers ({rows}): its activations are known from a run alone",)
    try:
        return _from_shapes(module, stacks[0])
    except _NotOne as error:
        return None, (f"its layers are not known as a transformer's ({error}): activations are known from a run alone",)


class _NotOne(Exception):
    """Why it is not one of the form that is known."""


def _from_config(module: nn.Module, stack: Stack) -> Transformer | None:
    config = getattr(module, "config", None)
    as_dict = getattr(config, "to_dict", None)
    if not callable(as_dict):
        return None
    try:
        said = as_dict()
        found = from_config(said, type(module).__name__) if isinstance(said, Mapping) else None
    except HoldfastError:
        return None
    return msgspec.structs.replace(found, layers=stack.count) if found is not None else None


def _from_shapes(module: nn.Module, stack: Stack) -> Found:
    layer = layers_at(module, stack.path)[0]
    matrices = list(_matrices(layer))
    # Of tokens is the first: positions may have more rows.
    embedding = next((m for m in module.modules() if isinstance(m, nn.Embedding)), None)
    if embedding is None:
        raise _NotOne("there is no embedding")
    vocab, hidden = embedding.weight.shape
    queries, keys = _attention([m for m in matrices if m.in_attention], hidden)
    ffn, gated = _feed_forward([m for m in matrices if not m.in_attention], hidden)
    heads, kv_heads, assumed = _heads(module, layer, hidden, keys / queries)
    norms = [m for m in layer.modules() if "norm" in type(m).__name__.casefold() and _own_weights(m)]
    attention = [m for m in matrices if m.in_attention]
    shape = Transformer(
        name=type(module).__name__, layers=stack.count, hidden=hidden, heads=heads, kv_heads=kv_heads,
        head_width=queries // heads, ffn=ffn, vocab=vocab, gated=gated, tied=_tied(module, embedding),
        qkv_bias=any(m.biased for m in attention if m.name not in _OUTPUT),
        bias=all(m.biased for m in matrices), norm_bias=any(getattr(m, "bias", None) is not None for m in norms),
        norms_a_layer=len(norms), positions=_positions(module, embedding), assumed=assumed,
    )  # fmt: skip
    return shape, assumed


def _own_weights(module: nn.Module) -> bool:
    return next(module.parameters(recurse=False), None) is not None


def _matrices(layer: nn.Module) -> Iterable[_Matrix]:
    """Of one layer. Hugging Face's ``Conv1D`` is a linear one whose weight is turned."""
    for path, weight in layer.named_parameters():
        if weight.dim() < 2:
            continue
        if weight.dim() > 2:
            raise _NotOne(f"{path} has {weight.dim()} dimensions")
        owner, _, leaf = path.rpartition(".")
        holder = layer.get_submodule(owner)
        named = owner if leaf == "weight" else path
        turned = type(holder).__name__ == "Conv1D"
        into, out = weight.shape if turned else reversed(weight.shape)
        bias = getattr(holder, "bias" if leaf == "weight" else leaf.replace("weight", "bias"), None)
        yield _Matrix(named, into, out, isinstance(bias, nn.Parameter))


def _attention(matrices: list[_Matrix], hidden: int) -> tuple[int, int]:
    """Width of all queries, and of all keys."""
    by_role = {role: [m for m in matrices if m.name in names] for role, names in (
        ("q", _QUERIES), ("k", _KEYS), ("v", _VALUES), ("qkv", _TOGETHER), ("o", _OUTPUT))}  # fmt: skip
    counts = {role: len(found) for role, found in by_role.items()}
    if sum(counts.values()) != len(matrices) or counts["o"] != 1:
        raise _NotOne(f"attention has {', '.join(m.path for m in matrices) or 'no matrices'}")
    queries = by_role["o"][0].into
    if counts == {"q": 1, "k": 1, "v": 1, "qkv": 0, "o": 1}:
        keys, values = by_role["k"][0], by_role["v"][0]
        if (by_role["q"][0].out, keys.out) != (queries, values.out) or keys.into != hidden:
            raise _NotOne("queries, keys and values are of widths that do not go together")
        return queries, keys.out
    if counts != {"q": 0, "k": 0, "v": 0, "qkv": 1, "o": 1}:
        raise _NotOne(f"attention has {', '.join(m.path for m in matrices)}")
    rest = by_role["qkv"][0].out - queries
    if rest <= 0 or rest % 2 or rest // 2 > queries:
        raise _NotOne(f"{by_role['qkv'][0].path} is {rest + queries} wide, beside {queries}")
    return queries, rest // 2


def _feed_forward(matrices: list[_Matrix], hidden: int) -> tuple[int, bool]:
    """Inner width, and whether it is gated. Two of one size into it are a gate, or one that is twice as wide."""
    back = [m for m in matrices if m.out == hidden and (m.into != hidden or m is matrices[-1])]
    into = [m for m in matrices if m not in back and m.into == hidden]
    paths = ", ".join(m.path for m in matrices) or "no matrices"
    if len(back) != 1 or len(into) + 1 != len(matrices):
        raise _NotOne(f"beside attention it has {paths}")
    ffn = back[0].into
    widths = [m.out for m in into]
    if widths in ([ffn, ffn], [2 * ffn]):
        return ffn, True
    if widths == [ffn]:
        return ffn, False
    raise _NotOne(f"beside attention it has {paths}")


def _heads(module: nn.Module, layer: nn.Module, hidden: int, ratio: float) -> tuple[int, int, tuple[str, ...]]:
    """Of queries, and of keys and values: as an attribute says, of a part of the layer or of a configuration."""
    holders: list[Any] = [*layer.modules(), *(getattr(module, name, None) for name in _CONFIGS)]
    heads = _first(holders, _HEADS)
    if heads is None or not 0 < heads <= hidden:
        heads = max(1, hidden // 64)
        return heads, max(1, round(heads * ratio)), (f"{heads} heads, 64 wide each: it does not say how many",)
    return heads, _first(holders, _KV_HEADS) or max(1, round(heads * ratio)), ()


def _first(holders: Iterable[Any], names: Iterable[str]) -> int | None:
    for holder in holders:
        for name in names:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _tied(module: nn.Module, embedding: nn.Embedding) -> bool:
    """The head's weight is the embedding's."""
    return sum(w is embedding.weight for _, w in module.named_parameters(remove_duplicate=False)) > 1


def _positions(module: nn.Module, embedding: nn.Embedding) -> int:
    """Learned ones: another embedding of the same width."""
    others = (m for m in module.modules() if isinstance(m, nn.Embedding) and m is not embedding)
    return sum(m.num_embeddings for m in others if m.embedding_dim == embedding.embedding_dim)

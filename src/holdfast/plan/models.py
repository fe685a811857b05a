"""Parameters and floating-point operations of transformers, computed from their sizes.

A model comes from a name (:data:`KNOWN_MODELS`) or from a Hugging Face ``config.json``
(:func:`transformer_from_config`). Counts are exact for the known architectures; tests compare them
with published ones.

Operations follow J. Kaplan et al., "Scaling Laws for Neural Language Models" (2020), §2.1, and A.
Chowdhery et al., "PaLM" (2022), appendix B: 2 per matrix weight and token in forward, 4 in
backward; attention adds 4·s·a·d for scores and values in forward, of which a causal mask needs
half.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.errors import InvalidValue, UnknownName


class Transformer(msgspec.Struct, frozen=True, kw_only=True):
    """A stack of equal decoder (or encoder) layers between an embedding and a head.

    ``heads`` query heads share ``kv_heads`` key-value heads, each ``head_width`` wide. ``ffn`` is
    the feed-forward size; the feed-forward part has three matrices if ``gated``, else two. Each
    layer has ``experts`` of them, of which ``active`` process a token; ``shared_ffn`` is the
    feed-forward size of an expert that processes all tokens. ``positions``: learned position
    embeddings. ``qkv_bias`` and ``bias`` (of all matrices): whether there are biases;
    ``norm_bias``: norms have one beside their weight. ``tied``: the head is the embedding.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_width: int
    ffn: int
    vocab: int
    gated: bool = True
    tied: bool = False
    qkv_bias: bool = False
    bias: bool = False
    norm_bias: bool = False
    norms_a_layer: int = 2
    positions: int = 0
    experts: int = 1
    active: int = 1
    shared_ffn: int = 0
    #: Sizes that were not given.
    assumed: tuple[str, ...] = ()

    @property
    def attention_params(self) -> int:
        """Return the parameters of one layer's query, key, value and output matrices."""
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        biases = (queries + 2 * keys) * (self.qkv_bias or self.bias) + self.hidden * self.bias
        return 2 * self.hidden * queries + 2 * self.hidden * keys + biases

    def _feed_forward(self, inner: int) -> int:
        matrices = 3 if self.gated else 2
        return matrices * self.hidden * inner + self.bias * ((matrices - 1) * inner + self.hidden)

    @property
    def expert_params(self) -> int:
        """Return the parameters of one expert, or of the feed-forward part without experts."""
        return self._feed_forward(self.ffn)

    @property
    def feed_forward_params(self) -> int:
        """Return the feed-forward parameters of one layer with all experts and the router."""
        router = self.hidden * self.experts if self.experts > 1 else 0
        shared = self._feed_forward(self.shared_ffn) if self.shared_ffn else 0
        return self.experts * self._feed_forward(self.ffn) + router + shared

    @property
    def norm_params(self) -> int:
        """Return the parameters of one norm."""
        return self.hidden * (1 + self.norm_bias)

    @property
    def layer_params(self) -> int:
        """Return the parameters of one layer."""
        return (
            self.attention_params + self.feed_forward_params + self.norms_a_layer * self.norm_params
        )

    @property
    def embedding_params(self) -> int:
        """Return the parameters of token and learned position embeddings."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def head_params(self) -> int:
        """Return the parameters of the last norm and, unless tied, of the head."""
        return self.norm_params + (0 if self.tied else self.vocab * self.hidden)

    @property
    def params(self) -> int:
        """Return all parameters."""
        return self.layers * self.layer_params + self.embedding_params + self.head_params

    @property
    def active_params(self) -> int:
        """Return the parameters that process a token: only the chosen experts count."""
        idle = (self.experts - self.active) * self._feed_forward(self.ffn)
        return self.params - self.layers * idle

    @property
    def matrix_params(self) -> int:
        """Return the active parameters in matrix products: without embedding, with the head."""
        looked_up = self.embedding_params
        return self.active_params - looked_up + (self.vocab * self.hidden if self.tied else 0)

    def flops_per_token(self, sequence: int, *, causal: bool = False) -> float:
        """Return forward and backward operations of one token in a sequence, without recomputation.

        ``causal`` counts half of the attention, as a kernel computes it; published MFU mostly
        counts all of it.
        """
        attention = 12 * self.layers * self.heads * self.head_width * sequence
        return 6 * self.matrix_params + attention / (2 if causal else 1)


def _llama(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    ffn: int,
    vocab: int,
    **more: Any,
) -> Transformer:
    return Transformer(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_width=hidden // heads,
        ffn=ffn,
        vocab=vocab,
        **more,
    )


#: Like GPT-2: layer norms, biases, two feed-forward matrices, and a tied head.
_GPT_TRAITS = {"gated": False, "tied": True, "qkv_bias": True, "bias": True, "norm_bias": True}


def gpt_like(
    name: str, layers: int, hidden: int, heads: int, vocab: int, positions: int
) -> Transformer:
    """Return a model like GPT-2 with learned positions."""
    sizes = (layers, hidden, heads, heads, 4 * hidden, vocab)
    return _llama(name, *sizes, positions=positions, **_GPT_TRAITS)


#: By name. Sizes: the models' config.json on huggingface.co; MPT: mosaicml/llm-foundry,
#: scripts/train/benchmarking; GPT-3 and larger ones: T. Brown et al. (2020), table 2.1; D.
#: Narayanan et al., SC21, table 1.
KNOWN_MODELS: Mapping[str, Transformer] = {
    model.name: model
    for model in (
        _llama("llama-7b", 32, 4096, 32, 32, 11008, 32000),
        _llama("llama-13b", 40, 5120, 40, 40, 13824, 32000),
        _llama("llama-33b", 60, 6656, 52, 52, 17920, 32000),
        _llama("llama-65b", 80, 8192, 64, 64, 22016, 32000),
        _llama("llama2-7b", 32, 4096, 32, 32, 11008, 32000),
        _llama("llama2-13b", 40, 5120, 40, 40, 13824, 32000),
        _llama("llama2-70b", 80, 8192, 64, 8, 28672, 32000),
        _llama("llama3-8b", 32, 4096, 32, 8, 14336, 128256),
        _llama("llama3-70b", 80, 8192, 64, 8, 28672, 128256),
        _llama("llama3.1-8b", 32, 4096, 32, 8, 14336, 128256),
        _llama("llama3.1-70b", 80, 8192, 64, 8, 28672, 128256),
        _llama("llama3.1-405b", 126, 16384, 128, 8, 53248, 128256),
        _llama("llama3.2-1b", 16, 2048, 32, 8, 8192, 128256, tied=True),
        _llama("llama3.2-3b", 28, 3072, 24, 8, 8192, 128256, tied=True),
        _llama("mistral-7b", 32, 4096, 32, 8, 14336, 32000),
        _llama("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, experts=8, active=2),
        _llama("yi-34b", 60, 7168, 56, 8, 20480, 64000),
        _llama("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, qkv_bias=True),
        _llama("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, qkv_bias=True),
        gpt_like("gpt2", 12, 768, 12, 50257, 1024),
        gpt_like("gpt2-medium", 24, 1024, 16, 50257, 1024),
        gpt_like("gpt2-large", 36, 1280, 20, 50257, 1024),
        gpt_like("gpt2-xl", 48, 1600, 25, 50257, 1024),
        gpt_like("gpt3-175b", 96, 12288, 96, 50257, 2048),
        gpt_like("gpt-22b", 48, 6144, 64, 51200, 2048),
        gpt_like("gpt-530b", 105, 20480, 128, 51200, 2048),
        gpt_like("gpt-1t", 128, 25600, 160, 51200, 2048),
        gpt_like("mpt-125m", 12, 768, 12, 50368, 2048),
        gpt_like("mpt-350m", 24, 1024, 16, 50368, 2048),
        gpt_like("mpt-760m", 24, 1536, 12, 50368, 2048),
        gpt_like("mpt-1b", 24, 2048, 16, 50368, 2048),
        gpt_like("mpt-3b", 32, 2560, 20, 50368, 2048),
        gpt_like("mpt-7b", 32, 4096, 32, 50368, 2048),
        gpt_like("mpt-13b", 40, 5120, 40, 50368, 2048),
        gpt_like("mpt-30b", 48, 7168, 56, 50368, 2048),
        gpt_like("mpt-70b", 80, 8192, 64, 50368, 2048),
    )
}


def get_known_model(name: str) -> Transformer:
    """Return the model of that name, case-insensitively.

    Raises:
        UnknownName: no such model; the message suggests the nearest names.
    """
    model = KNOWN_MODELS.get(name.casefold())
    if model is None:
        raise UnknownName("model", name, KNOWN_MODELS)
    return model


# ---- Hugging Face configurations

#: Traits that config.json omits: https://github.com/huggingface/transformers,
#: src/transformers/models/<name>/modeling_<name>.py and configuration_<name>.py.
_ARCHITECTURES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": {},
    "mixtral": {},
    "qwen2": {"qkv_bias": True},
    "gpt2": _GPT_TRAITS,
    "gpt_neox": {"gated": False, "qkv_bias": True, "bias": True, "norm_bias": True},
    "opt": _GPT_TRAITS,
    "mpt": {"gated": False, "tied": True},
}
#: Keys of each size by architecture, the usual one first.
_CONFIG_KEYS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_width": ("head_dim",),
    "ffn": ("intermediate_size", "ffn_dim", "n_inner"),
    "vocab": ("vocab_size",),
    "experts": ("num_local_experts",),
    "active": ("num_experts_per_tok",),
}
_LEARNED_POSITIONS: Mapping[str, tuple[str, int]] = {
    "gpt2": ("n_positions", 0),
    "opt": ("max_position_embeddings", 2),
}
_REQUIRED_SIZES = ("layers", "hidden", "heads", "vocab")
_MAX_SIZE = 1 << 40


def transformer_from_config(config: Mapping[str, Any], name: str = "") -> Transformer:
    """Return the model that a Hugging Face ``config.json`` describes.

    Raises:
        UnknownName: an unknown architecture.
        InvalidValue: a size is missing or invalid.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _ARCHITECTURES:
        raise UnknownName(
            "architecture", str(kind), _ARCHITECTURES, next_step="pass the sizes as options"
        )
    sizes = {field: _config_size(config, names) for field, names in _CONFIG_KEYS.items()}
    missing = [_CONFIG_KEYS[field][0] for field in _REQUIRED_SIZES if sizes[field] is None]
    if missing:
        raise InvalidValue(f"the configuration of a {kind}", why=f"missing {', '.join(missing)}")
    hidden, heads = sizes["hidden"] or 0, sizes["heads"] or 0
    if sizes["head_width"] is None and hidden % heads:
        raise InvalidValue(
            f"the configuration of a {kind}",
            why=f"{heads} heads do not divide the hidden size {hidden}",
        )
    traits = {**_ARCHITECTURES[kind], **_explicit_flags(config)}
    assumed = (
        () if sizes["ffn"] or kind in ("gpt2", "mpt") else (f"feed-forward size {4 * hidden}",)
    )
    positions = _LEARNED_POSITIONS.get(kind)
    return Transformer(
        name=name or str(config.get("_name_or_path") or kind),
        layers=sizes["layers"] or 0,
        hidden=hidden,
        heads=heads,
        kv_heads=sizes["kv_heads"] or heads,
        head_width=sizes["head_width"] or hidden // heads,
        ffn=sizes["ffn"] or 4 * hidden,
        vocab=sizes["vocab"] or 0,
        experts=sizes["experts"] or 1,
        active=sizes["active"] or 1,
        positions=(_config_size(config, positions[:1]) or 0) + positions[1] if positions else 0,
        assumed=assumed,
        **traits,
    )


def _explicit_flags(config: Mapping[str, Any]) -> dict[str, bool]:
    """Return the traits that the configuration sets explicitly."""
    keys = {"tied": "tie_word_embeddings", "qkv_bias": "attention_bias"}
    return {field: config[key] for field, key in keys.items() if isinstance(config.get(key), bool)}


def _config_size(config: Mapping[str, Any], names: tuple[Any, ...]) -> int | None:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _MAX_SIZE:
            raise InvalidValue(f"{name} = {str(value)[:40]!r}", why="must be an integer above 0")
        return value
    return None

"""Parameter counts of published models, and FLOPs per token as published MFU figures count them."""

import msgspec
import pytest

from holdfast.core.errors import InvalidValue, UnknownName
from holdfast.plan.models import KNOWN_MODELS, get_known_model, transformer_from_config

#: Counts of the published weights (safetensors index or model card on huggingface.co; nanoGPT's README for GPT-2).
PUBLISHED = {
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama-33b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "yi-34b": 34_388_917_248,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    # mosaicml/llm-foundry, scripts/train/benchmarking/README.md, at 2,048 positions
    "mpt-125m": 125_311_488,
    "mpt-350m": 355_985_408,
    "mpt-760m": 760_470_528,
    "mpt-1b": 1_315_950_592,
    "mpt-3b": 2_651_837_440,
    "mpt-7b": 6_658_859_008,
    "mpt-13b": 12_853_954_560,
    "mpt-30b": 29_975_214_080,
    "mpt-70b": 64_862_437_376,
}

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "attention_bias": False,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_match_published_counts(name):
    assert get_known_model(name).params == PUBLISHED[name]


def test_active_params_count_only_selected_experts():
    assert get_known_model("mixtral-8x7b").active_params == pytest.approx(
        12.9e9, rel=0.005
    )  # A. Q. Jiang et al. (2024)


@pytest.mark.parametrize(
    ("name", "sequence", "tokens_per_s", "mfu"),
    [  # mosaicml/llm-foundry, scripts/train/benchmarking/README.md: tokens/s per A100-80G, MFU in percent
        ("mpt-1b", 65_536, 3_044, 46.18),
        ("mpt-7b", 2_048, 4_641, 64.23),
        ("mpt-13b", 32_768, 1_016, 51.69),
        ("mpt-30b", 512, 967, 56.40),
    ],
)
def test_flops_match_published_mfu(name, sequence, tokens_per_s, mfu):
    result = (
        get_known_model(name).flops_per_token(sequence) * tokens_per_s / 312e12
    )  # NVIDIA's datasheet, BF16 without sparsity
    # The published MFU also counts position embeddings.
    assert result * 100 == pytest.approx(mfu, rel=0.02)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama3-8b"),
        (
            {
                "model_type": "gpt2",
                "n_embd": 768,
                "n_head": 12,
                "n_layer": 12,
                "n_positions": 1024,
                "n_inner": None,
                "vocab_size": 50257,
            },
            "gpt2",
        ),
        (
            {
                "model_type": "mixtral",
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_attention_heads": 32,
                "num_hidden_layers": 32,
                "num_key_value_heads": 8,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "vocab_size": 32000,
            },
            "mixtral-8x7b",
        ),
        (
            {
                "model_type": "qwen2",
                "hidden_size": 3584,
                "intermediate_size": 18944,
                "num_attention_heads": 28,
                "num_hidden_layers": 28,
                "num_key_value_heads": 4,
                "vocab_size": 152064,
            },
            "qwen2.5-7b",
        ),
    ],
)
def test_config_json_matches_the_known_model(config, name):
    assert msgspec.structs.replace(transformer_from_config(config), name=name) == KNOWN_MODELS[name]


def test_opt_has_two_extra_positions():
    config = {
        "model_type": "opt",
        "hidden_size": 768,
        "ffn_dim": 3072,
        "num_attention_heads": 12,
        "vocab_size": 50272,
        "num_hidden_layers": 12,
        "max_position_embeddings": 2048,
    }
    assert transformer_from_config(config).params == 125_239_296  # facebook/opt-125m


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        ({"model_type": "lama"}, UnknownName, "unknown architecture 'lama'"),
        ({"model_type": None}, UnknownName, "unknown architecture"),
        ({"hidden_size": None}, InvalidValue, "missing hidden_size"),
        ({"hidden_size": -4}, InvalidValue, "above 0"),
        ({"vocab_size": "many"}, InvalidValue, "above 0"),
        ({"num_hidden_layers": True}, InvalidValue, "above 0"),
        ({"num_hidden_layers": 1 << 50}, InvalidValue, "above 0"),
        ({"num_attention_heads": 33}, InvalidValue, "33 heads do not divide"),
    ],
)
def test_invalid_configurations_are_rejected(change, error, why):
    with pytest.raises(error, match=why):
        transformer_from_config({**LLAMA, **change})


def test_unknown_model_error_suggests_the_nearest_name():
    with pytest.raises(UnknownName, match="did you mean llama3"):
        get_known_model("lama3-8b")
    assert get_known_model("LLaMA2-7B").name == "llama2-7b"

"""Parameters of published models, to the last one; operations a token as published MFU counts them."""

import msgspec
import pytest

from holdfast.errors import BadValue, UnknownName
from holdfast.plan.models import KNOWN, from_config, known

#: Counts of the published weights (safetensors index or model card on huggingface.co; nanoGPT's README for GPT-2).
PUBLISHED = {
    "llama-7b": 6_738_415_616, "llama-13b": 13_015_864_320, "llama-33b": 32_528_943_616, "llama-65b": 65_285_660_672,
    "llama2-7b": 6_738_415_616, "llama2-13b": 13_015_864_320, "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248, "llama3.1-70b": 70_553_706_496, "llama3.1-405b": 405_853_388_800,
    "llama3.2-1b": 1_235_814_400, "llama3.2-3b": 3_212_749_824, "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "yi-34b": 34_388_917_248, "qwen2.5-7b": 7_615_616_512, "qwen2.5-72b": 72_706_203_648,
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    # mosaicml/llm-foundry, scripts/train/benchmarking/README.md, at 2,048 positions
    "mpt-125m": 125_311_488, "mpt-350m": 355_985_408, "mpt-760m": 760_470_528, "mpt-1b": 1_315_950_592,
    "mpt-3b": 2_651_837_440, "mpt-7b": 6_658_859_008, "mpt-13b": 12_853_954_560, "mpt-30b": 29_975_214_080,
    "mpt-70b": 64_862_437_376,
}  # fmt: skip

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    "attention_bias": False,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_that_were_published(name):
    assert known(name).params == PUBLISHED[name]


def test_of_experts_a_token_meets_the_chosen_ones():
    assert known("mixtral-8x7b").active_params == pytest.approx(12.9e9, rel=0.005)  # A. Q. Jiang et al. (2024)


@pytest.mark.parametrize(
    ("name", "sequence", "tokens_per_s", "mfu"),
    [  # mosaicml/llm-foundry, scripts/train/benchmarking/README.md: tokens a second and A100-80G, MFU in percent
        ("mpt-1b", 65_536, 3_044, 46.18),
        ("mpt-7b", 2_048, 4_641, 64.23),
        ("mpt-13b", 32_768, 1_016, 51.69),
        ("mpt-30b", 512, 967, 56.40),
    ],
)
def test_operations_are_counted_as_published_mfu_counts_them(name, sequence, tokens_per_s, mfu):
    found = known(name).flops_a_token(sequence) * tokens_per_s / 312e12  # NVIDIA's data sheet, BF16 without sparsity
    assert found * 100 == pytest.approx(mfu, rel=0.02)  # theirs counts rows of positions too


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama3-8b"),
        ({"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "n_inner": None,
          "vocab_size": 50257}, "gpt2"),
        ({"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
          "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
          "vocab_size": 32000}, "mixtral-8x7b"),
        ({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
          "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064}, "qwen2.5-7b"),
    ],
)  # fmt: skip
def test_a_configuration_gives_the_same_model(config, name):
    assert msgspec.structs.replace(from_config(config), name=name) == KNOWN[name]


def test_opt_has_two_positions_more_than_it_says():
    config = {"model_type": "opt", "hidden_size": 768, "ffn_dim": 3072, "num_attention_heads": 12, "vocab_size": 50272,
              "num_hidden_layers": 12, "max_position_embeddings": 2048}  # fmt: skip
    assert from_config(config).params == 125_239_296  # facebook/opt-125m


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        ({"model_type": "lama"}, UnknownName, "there is no architecture 'lama'"),
        ({"model_type": None}, UnknownName, "there is no architecture"),
        ({"hidden_size": None}, BadValue, "nothing of hidden_size"),
        ({"hidden_size": -4}, BadValue, "above 0"),
        ({"vocab_size": "many"}, BadValue, "above 0"),
        ({"num_hidden_layers": True}, BadValue, "above 0"),
        ({"num_hidden_layers": 1 << 50}, BadValue, "above 0"),
        ({"num_attention_heads": 33}, BadValue, "cannot have 33 heads"),
    ],
)
def test_what_is_no_configuration_is_refused(change, error, why):
    with pytest.raises(error, match=why):
        from_config({**LLAMA, **change})


def test_an_unknown_name_is_told_the_nearest():
    with pytest.raises(UnknownName, match="did you mean llama3"):
        known("lama3-8b")
    assert known("LLaMA2-7B").name == "llama2-7b"

"""Memory of adapters, frozen parts and submodels, compared with torchtune's published table."""

import msgspec
import pytest

from holdfast.core.errors import InvalidValue, UnknownName
from holdfast.plan.memory.estimate import estimate_memory
from holdfast.plan.models import Transformer, get_known_model
from holdfast.plan.setup import (
    ActivationCheckpointing,
    LossKernel,
    Precision,
    ShardingStrategy,
    TrainingSetup,
)
from holdfast.plan.submodels import (
    NF4_BYTES,
    Lora,
    Submodel,
    estimate_submodels_memory,
    get_known_submodels,
    submodels_from_config,
)

GIB = 1 << 30
LLAMA = get_known_model("llama3.2-3b")
BF16 = Precision(compute=2, master=0, gradient=2, reduced=2, state=2)
RUN = TrainingSetup(
    strategy=ShardingStrategy.DDP,
    micro_batch=2,
    sequence=4096,
    precision=BF16,
    fused_optimizer=True,
    compiled=True,
    loss=LossKernel.CHUNKED,
)
RUN_CHECKPOINTED = msgspec.structs.replace(RUN, recompute=ActivationCheckpointing.FULL)
#: recipes/configs/llama3_2/3B_lora_single_device.yaml
ADAPTERS = Lora(64, ("queries", "values", "output", "gate", "up", "down"))
#: Saved under full checkpointing: the input of each layer.
INPUTS = 2 * LLAMA.layers * RUN.micro_batch * RUN.sequence * LLAMA.hidden
#: A setup whose memory peak is at the loss.
LOSS_PEAK = TrainingSetup(strategy=ShardingStrategy.DDP, micro_batch=16, sequence=2048)
CLIP = Transformer(
    name="clip-vit-l",
    layers=24,
    hidden=1024,
    heads=16,
    kv_heads=16,
    head_width=64,
    ffn=4096,
    vocab=0,
    gated=False,
    tied=True,
    qkv_bias=True,
    bias=True,
    norm_bias=True,
    positions=577,
)


@pytest.mark.parametrize(
    ("submodel", "run", "offloaded", "gib"),
    [
        (Submodel(model=LLAMA), RUN, 0, 42.9),
        (Submodel(model=LLAMA), RUN_CHECKPOINTED, 0, 24.9),
        (Submodel(model=LLAMA, trained=False, lora=ADAPTERS), RUN_CHECKPOINTED, INPUTS, 8.5),
        (
            Submodel(model=LLAMA, trained=False, lora=ADAPTERS, frozen_bytes=NF4_BYTES),
            RUN_CHECKPOINTED,
            INPUTS,
            4.6,
        ),
    ],
)
def test_peaks_match_torchtune(submodel, run, offloaded, gib):
    # pytorch/torchtune, README.md, "Optimization flags": peak memory active, Llama 3.2 3B in bf16 on one A100; with
    # adapters, layer inputs are on the host
    assert (
        estimate_submodels_memory([submodel], run).worst.tensors - offloaded
    ) / GIB == pytest.approx(gib, rel=0.13)


def test_embedding_and_head_are_not_quantized():
    run = msgspec.structs.replace(RUN_CHECKPOINTED, precision=BF16)
    model = get_known_model("llama3.1-8b")
    parameter_bytes = estimate_submodels_memory(
        [Submodel(model=model, trained=False, lora=Lora(8), frozen_bytes=0.5)], run
    ).worst.parameters
    unquantized = 2 * model.vocab * model.hidden
    assert parameter_bytes == pytest.approx(
        2 * unquantized + 0.5 * (model.params - unquantized), rel=0.01
    )


def test_single_trained_submodel_equals_the_model():
    for run in (RUN, RUN_CHECKPOINTED, TrainingSetup(data=8)):
        assert (
            estimate_submodels_memory([Submodel(model=LLAMA)], run).worst
            == estimate_memory(LLAMA, run).worst
        )


def test_adapters_are_counted_for_each_matrix():
    assert Lora(8).params(LLAMA) == 8 * ((3072 + 3072) + (3072 + 1024))
    assert Lora(8, ("gate", "down")).params(LLAMA) == 8 * 2 * (3072 + 8192)


def test_leading_frozen_submodel_saves_no_activations():
    def vision(*, trained):
        submodel = Submodel(model=CLIP, tokens=577, trained=trained)
        return estimate_submodels_memory([submodel, Submodel(model=LLAMA)], LOSS_PEAK).worst

    frozen, whole, alone = (
        vision(trained=False),
        vision(trained=True),
        estimate_memory(LLAMA, LOSS_PEAK).worst,
    )
    assert frozen.activations == alone.activations
    assert whole.activations > alone.activations
    assert frozen.parameters - alone.parameters == 2 * CLIP.params
    assert frozen.optimizer == alone.optimizer
    assert whole.optimizer - alone.optimizer == 8 * CLIP.params


def test_frozen_model_after_trained_one_saves_activations():
    run = LOSS_PEAK
    frozen = estimate_submodels_memory(
        [Submodel(model=CLIP, tokens=577), Submodel(model=LLAMA, trained=False)], run
    ).worst
    whole = estimate_submodels_memory(
        [Submodel(model=CLIP, tokens=577), Submodel(model=LLAMA)], run
    ).worst
    assert 0.5 * whole.activations < frozen.activations < whole.activations
    assert frozen.optimizer < 0.2 * whole.optimizer


def test_adapters_keep_frozen_weights_in_compute_dtype():
    result = estimate_submodels_memory(
        [Submodel(model=LLAMA, trained=False, lora=Lora())], TrainingSetup(data=8)
    ).worst
    adapters = Lora().params(LLAMA) * LLAMA.layers
    assert result.parameters == pytest.approx((2 * LLAMA.params + 4 * adapters) / 8, rel=1e-6)
    assert result.optimizer == pytest.approx(8 * adapters / 8, rel=1e-6)


def test_known_submodels_have_published_sizes():
    image, language = get_known_submodels("LLaVA-1.6-34b")
    assert image.model.params == pytest.approx(
        303_507_456, rel=1e-4
    )  # openai/clip-vit-large-patch14-336
    assert (image.trained, image.projector) == (False, 1025 * 7168 + 7169 * 7168)
    assert language.model is get_known_model("yi-34b")
    assert get_known_submodels("gpt2") == (Submodel(model=get_known_model("gpt2")),)
    with pytest.raises(UnknownName, match="unknown model"):
        get_known_submodels("llava-1.5-7")


#: llava-hf/llava-v1.6-34b-hf, config.json
LLAVA = {
    "model_type": "llava_next",
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
    },
    "text_config": {
        "model_type": "llama",
        "hidden_size": 7168,
        "intermediate_size": 20480,
        "num_hidden_layers": 60,
        "num_attention_heads": 56,
        "num_key_value_heads": 8,
        "vocab_size": 64064,
    },
}


def test_config_json_matches_the_known_submodels():
    image, language = submodels_from_config(LLAVA)
    known_image, known_language = get_known_submodels("llava-1.6-34b")
    assert image.tokens == 577
    assert image.model.params == known_image.model.params
    assert image.projector == known_image.projector
    assert language.model.layer_params == known_language.model.layer_params
    assert [submodel.has_gradients for submodel in submodels_from_config(LLAVA["text_config"])] == [
        True
    ]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model_type": "clap"}, UnknownName),
        ({"patch_size": 0}, InvalidValue),
        ({"image_size": None}, InvalidValue),
        ({"hidden_size": "wide"}, InvalidValue),
    ],
)
def test_invalid_configuration_is_rejected(change, error):
    with pytest.raises(error):
        submodels_from_config({**LLAVA, "vision_config": {**LLAVA["vision_config"], **change}})


def test_projector_is_trained_beside_frozen_submodel():
    image, language = get_known_submodels("llava-1.5-7b")
    first = (image, msgspec.structs.replace(language, trained=False))  # LLaVA's first stage
    result = estimate_submodels_memory(first, LOSS_PEAK).worst
    assert result.optimizer == 8 * image.projector
    assert result.master == 4 * image.projector


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda: estimate_submodels_memory([Submodel(model=LLAMA, trained=False)], RUN),
            "no step to plan",
        ),
        (
            lambda: estimate_submodels_memory([Submodel(model=LLAMA)], TrainingSetup(pipeline=2)),
            "--pipeline 2: only plain",
        ),
        (lambda: Lora(0), "a rank of 0"),
        (lambda: Lora(8, ("q",)), "an adapter on q"),
    ],
)
def test_invalid_submodels_are_rejected(make, why):
    with pytest.raises(InvalidValue, match=why):
        make()

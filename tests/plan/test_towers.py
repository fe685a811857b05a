"""Adapters, frozen parts, and models of several parts: against torchtune's published table, and what has to hold."""

import msgspec
import pytest

from holdfast.errors import BadValue, UnknownName
from holdfast.plan.memory import footprint
from holdfast.plan.models import Transformer, known
from holdfast.plan.setup import Loss, Precision, Recompute, Setup, Strategy
from holdfast.plan.towers import NF4, Lora, Tower, footprint_of, known_towers, towers_from_config

GIB = 1 << 30
LLAMA = known("llama3.2-3b")
BF16 = Precision(compute=2, master=0, gradient=2, reduced=2, state=2)
RUN = Setup(strategy=Strategy.DDP, micro_batch=2, sequence=4096, precision=BF16, fused_optimizer=True, compiled=True,
            loss=Loss.CHUNKED)  # fmt: skip
AGAIN = msgspec.structs.replace(RUN, recompute=Recompute.FULL)
#: recipes/configs/llama3_2/3B_lora_single_device.yaml
ADAPTERS = Lora(64, ("queries", "values", "output", "gate", "up", "down"))
#: What recomputing keeps: the input of each layer.
INPUTS = 2 * LLAMA.layers * RUN.micro_batch * RUN.sequence * LLAMA.hidden
#: With its peak at the loss.
TOGETHER = Setup(strategy=Strategy.DDP, micro_batch=16, sequence=2048)
CLIP = Transformer(name="clip-vit-l", layers=24, hidden=1024, heads=16, kv_heads=16, head_width=64, ffn=4096, vocab=0,
                   gated=False, tied=True, qkv_bias=True, bias=True, norm_bias=True, positions=577)  # fmt: skip


@pytest.mark.parametrize(
    ("tower", "run", "gone", "gib"),
    [
        (Tower(model=LLAMA), RUN, 0, 42.9),
        (Tower(model=LLAMA), AGAIN, 0, 24.9),
        (Tower(model=LLAMA, trained=False, lora=ADAPTERS), AGAIN, INPUTS, 8.5),
        (Tower(model=LLAMA, trained=False, lora=ADAPTERS, frozen_bytes=NF4), AGAIN, INPUTS, 4.6),
    ],
)
def test_what_torchtune_measured(tower, run, gone, gib):
    # pytorch/torchtune, README.md, "Optimization flags": peak memory active, Llama 3.2 3B in bf16 on one A100; from the
    # adapters on, the inputs of layers are kept on the host
    assert (footprint_of([tower], run).worst.tensors - gone) / GIB == pytest.approx(gib, rel=0.13)


def test_embedding_and_head_are_not_in_few_bits():
    run = msgspec.structs.replace(AGAIN, precision=BF16)
    model = known("llama3.1-8b")
    held = footprint_of([Tower(model=model, trained=False, lora=Lora(8), frozen_bytes=0.5)], run).worst.parameters
    ends = 2 * model.vocab * model.hidden
    assert held == pytest.approx(2 * ends + 0.5 * (model.params - ends), rel=0.01)


def test_one_tower_that_is_trained_is_the_model():
    for run in (RUN, AGAIN, Setup(data=8)):
        assert footprint_of([Tower(model=LLAMA)], run).worst == footprint(LLAMA, run).worst


def test_adapters_are_counted_for_each_matrix():
    assert Lora(8).params(LLAMA) == 8 * ((3072 + 3072) + (3072 + 1024))
    assert Lora(8, ("gate", "down")).params(LLAMA) == 8 * 2 * (3072 + 8192)


def test_a_frozen_tower_in_front_keeps_no_activations():
    def vision(*, trained):
        tower = Tower(model=CLIP, tokens=577, trained=trained)
        return footprint_of([tower, Tower(model=LLAMA)], TOGETHER).worst

    frozen, whole, alone = vision(trained=False), vision(trained=True), footprint(LLAMA, TOGETHER).worst
    assert frozen.activations == alone.activations
    assert whole.activations > alone.activations
    assert frozen.parameters - alone.parameters == 2 * CLIP.params
    assert frozen.optimizer == alone.optimizer
    assert whole.optimizer - alone.optimizer == 8 * CLIP.params


def test_a_frozen_model_behind_what_is_trained_keeps_what_gradients_pass_through():
    run = TOGETHER
    behind = footprint_of([Tower(model=CLIP, tokens=577), Tower(model=LLAMA, trained=False)], run).worst
    whole = footprint_of([Tower(model=CLIP, tokens=577), Tower(model=LLAMA)], run).worst
    assert 0.5 * whole.activations < behind.activations < whole.activations
    assert behind.optimizer < 0.2 * whole.optimizer


def test_adapters_under_sharding_leave_frozen_weights_in_the_type_they_are_computed_in():
    found = footprint_of([Tower(model=LLAMA, trained=False, lora=Lora())], Setup(data=8)).worst
    adapters = Lora().params(LLAMA) * LLAMA.layers
    assert found.parameters == pytest.approx((2 * LLAMA.params + 4 * adapters) / 8, rel=1e-6)
    assert found.optimizer == pytest.approx(8 * adapters / 8, rel=1e-6)


def test_known_models_of_several_parts():
    image, language = known_towers("LLaVA-1.6-34b")
    assert image.model.params == pytest.approx(303_507_456, rel=1e-4)  # openai/clip-vit-large-patch14-336
    assert (image.trained, image.projector) == (False, 1025 * 7168 + 7169 * 7168)
    assert language.model is known("yi-34b")
    assert known_towers("gpt2") == (Tower(model=known("gpt2")),)
    with pytest.raises(UnknownName, match="there is no model"):
        known_towers("llava-1.5-7")


#: llava-hf/llava-v1.6-34b-hf, config.json
LLAVA = {
    "model_type": "llava_next",
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
                      "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336, "patch_size": 14},
    "text_config": {"model_type": "llama", "hidden_size": 7168, "intermediate_size": 20480, "num_hidden_layers": 60,
                    "num_attention_heads": 56, "num_key_value_heads": 8, "vocab_size": 64064},
}  # fmt: skip


def test_a_configuration_gives_the_same_parts():
    image, language = towers_from_config(LLAVA)
    known_image, known_language = known_towers("llava-1.6-34b")
    assert image.tokens == 577
    assert image.model.params == known_image.model.params
    assert image.projector == known_image.projector
    assert language.model.layer_params == known_language.model.layer_params
    assert [tower.learns for tower in towers_from_config(LLAVA["text_config"])] == [True]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"model_type": "clap"}, UnknownName),
        ({"patch_size": 0}, BadValue),
        ({"image_size": None}, BadValue),
        ({"hidden_size": "wide"}, BadValue),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(change, error):
    with pytest.raises(error):
        towers_from_config({**LLAVA, "vision_config": {**LLAVA["vision_config"], **change}})


def test_a_projector_is_trained_where_its_tower_is_not():
    image, language = known_towers("llava-1.5-7b")
    first = (image, msgspec.structs.replace(language, trained=False))  # LLaVA's first stage
    found = footprint_of(first, TOGETHER).worst
    assert found.optimizer == 8 * image.projector
    assert found.master == 4 * image.projector


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: footprint_of([Tower(model=LLAMA, trained=False)], RUN), "no step to plan"),
        (lambda: footprint_of([Tower(model=LLAMA)], Setup(pipeline=2)), "a pipeline of towers"),
        (lambda: Lora(0), "a rank of 0"),
        (lambda: Lora(8, ("q",)), "an adapter on q"),
    ],
)
def test_what_makes_no_sense_is_refused(make, why):
    with pytest.raises(BadValue, match=why):
        make()

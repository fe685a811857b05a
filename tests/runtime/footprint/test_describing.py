"""What is counted of a module on the meta device."""

import importlib.util
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from holdfast.errors import BadValue
from holdfast.plan.described import states
from holdfast.plan.memory import footprint
from holdfast.plan.models import known
from holdfast.plan.setup import Precision, Setup, Strategy
from holdfast.runtime.footprint.describing import describe

_SPEC = importlib.util.spec_from_file_location("small_models", Path(__file__).with_name("small_models.py"))
small = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(small)


def on_meta(build):
    with torch.device("meta"):
        built = build()
    return built[0] if isinstance(built, tuple) else built


def test_a_llama_is_recognised():
    found = describe(on_meta(small.llama))
    shape = found.transformer
    assert (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.ffn, shape.vocab) == (
        8,
        256,
        4,
        4,
        704,
        4096,
    )
    assert shape.gated
    assert not shape.tied
    assert shape.params == found.params == found.trained
    assert [(stack.path, stack.layer, stack.count) for stack in found.stacks] == [("layers", "LlamaLayer", 8)]
    assert sum(part.params for part in found.parts) == found.params
    assert found.dtypes == {"float32": found.params}
    assert found.unknown == ()


def test_a_gpt_is_recognised_with_what_it_ties():
    found = describe(on_meta(small.gpt))
    shape = found.transformer
    assert found.tied == (("embedding.weight", "head.weight"),)
    assert shape.tied
    assert shape.bias
    assert shape.norm_bias
    assert not shape.gated
    assert shape.positions == 1024
    assert shape.params == found.params


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_hugging_face_model_is_recognised_with_and_without_its_configuration(kind):
    transformers = pytest.importorskip("transformers")
    config = {
        "llama": lambda: transformers.LlamaConfig(hidden_size=128, intermediate_size=320, num_hidden_layers=3,
                                                  num_attention_heads=4, num_key_value_heads=2, vocab_size=1000),
        "gpt2": lambda: transformers.GPT2Config(n_embd=128, n_layer=3, n_head=4, vocab_size=1000, bos_token_id=0,
                                                eos_token_id=0),
    }[kind]()  # fmt: skip
    module = on_meta(lambda: transformers.AutoModelForCausalLM.from_config(config))
    by_config = describe(module).transformer
    module.config = None
    by_shape = describe(module).transformer
    assert by_config.params == sum(weight.numel() for weight in module.parameters())
    heads = {"heads": by_config.heads, "kv_heads": by_config.kv_heads, "head_width": by_config.head_width}
    assert msgspec.structs.replace(by_shape, assumed=(), **heads) == by_config


def test_what_is_no_transformer_has_its_states_alone():
    found = describe(on_meta(small.images))
    assert found.transformer is None
    assert "row of equal layers" in found.unknown[0]
    trained, frozen = 64 * 64 * 9 + 64 + 64 * 32 * 32 * 10 + 10, 64 * 3 * 9 + 64
    assert (found.params, found.trained) == (trained + frozen, trained)
    run = Setup(strategy=Strategy.DDP, precision=Precision(compute=4, master=0))
    here = states(found, run)
    assert here.parameters == pytest.approx(4 * (trained + frozen))
    assert here.gradients == pytest.approx(4 * trained)
    assert here.optimizer == pytest.approx(8 * trained)
    with pytest.raises(BadValue, match="how Sequential is divided so is not known"):
        states(found, Setup(tensor=2))


def test_states_by_count_are_those_of_the_form():
    found = describe(on_meta(small.llama))
    run = Setup(data=8)
    worst = footprint(found.transformer, run).worst
    here = states(found, run)
    assert here.parameters + here.optimizer == pytest.approx(worst.parameters + worst.optimizer, abs=2)


def test_a_stack_of_two_kinds_of_layers_is_not_taken_for_one_of_equal_ones():
    found = describe(on_meta(lambda: nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)])))
    assert found.stacks == ()


def test_a_layer_that_is_gone_through_twice_is_one():
    layer = nn.Linear(4, 4)
    found = describe(nn.ModuleList([layer, layer]))
    assert (found.params, found.stacks) == (20, ())
    assert found.tied == (("0.weight", "1.weight"), ("0.bias", "1.bias"))


def test_layers_that_are_no_attention_are_not_taken_for_a_transformer():
    model = nn.ModuleDict({"embedding": nn.Embedding(8, 4), "layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(3))})
    found = describe(model)
    assert found.transformer is None
    assert "attention has no matrices" in found.unknown[0]


def test_a_model_that_has_much_besides_is_not_taken_for_a_transformer():
    module = on_meta(small.llama)
    module.extra = nn.Linear(2048, 2048, device="meta")
    found = describe(module)
    assert found.transformer is None
    assert "as a transformer it would have" in found.unknown[0]


def test_a_seven_billion_model_takes_no_memory():
    model = known("llama2-7b")
    with torch.device("meta"):
        layers = nn.ModuleList(nn.Linear(model.hidden, model.ffn) for _ in range(model.layers))
    found = describe(layers)
    assert found.params == model.layers * model.ffn * (model.hidden + 1)
    assert all(weight.is_meta for weight in layers.parameters())

"""Parameter counts and recognition of modules on the meta device."""

import importlib.util
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn

from holdfast.core.errors import InvalidValue
from holdfast.plan.memory.estimate import estimate_memory
from holdfast.plan.model_counts import module_states
from holdfast.plan.models import get_known_model
from holdfast.plan.setup import Precision, ShardingStrategy, TrainingSetup
from holdfast.plan.torch_tracing.description import summarize_module

_SPEC = importlib.util.spec_from_file_location(
    "small_models", Path(__file__).with_name("small_models.py")
)
small = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(small)


def on_meta(build):
    with torch.device("meta"):
        built = build()
    return built[0] if isinstance(built, tuple) else built


def test_llama_is_recognized():
    result = summarize_module(on_meta(small.llama))
    shape = result.transformer
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
    assert shape.params == result.params == result.trained
    assert [(stack.path, stack.layer, stack.count) for stack in result.stacks] == [
        ("layers", "LlamaLayer", 8)
    ]
    assert sum(part.params for part in result.parts) == result.params
    assert result.dtypes == {"float32": result.params}
    assert result.unknown == ()


def test_gpt_is_recognized_with_tied_weights():
    result = summarize_module(on_meta(small.gpt))
    shape = result.transformer
    assert result.tied == (("embedding.weight", "head.weight"),)
    assert shape.tied
    assert shape.bias
    assert shape.norm_bias
    assert not shape.gated
    assert shape.positions == 1024
    assert shape.params == result.params


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_hugging_face_model_is_recognized_with_and_without_configuration(kind):
    transformers = pytest.importorskip("transformers")
    config = {
        "llama": lambda: transformers.LlamaConfig(
            hidden_size=128,
            intermediate_size=320,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=1000,
        ),
        "gpt2": lambda: transformers.GPT2Config(
            n_embd=128, n_layer=3, n_head=4, vocab_size=1000, bos_token_id=0, eos_token_id=0
        ),
    }[kind]()
    module = on_meta(lambda: transformers.AutoModelForCausalLM.from_config(config))
    by_config = summarize_module(module).transformer
    module.config = None
    by_shape = summarize_module(module).transformer
    assert by_config.params == sum(weight.numel() for weight in module.parameters())
    heads = {
        "heads": by_config.heads,
        "kv_heads": by_config.kv_heads,
        "head_width": by_config.head_width,
    }
    assert msgspec.structs.replace(by_shape, assumed=(), **heads) == by_config


def test_non_transformer_has_only_states():
    result = summarize_module(on_meta(small.images))
    assert result.transformer is None
    assert "stack of equal layers" in result.unknown[0]
    trained, frozen = 64 * 64 * 9 + 64 + 64 * 32 * 32 * 10 + 10, 64 * 3 * 9 + 64
    assert (result.params, result.trained) == (trained + frozen, trained)
    run = TrainingSetup(strategy=ShardingStrategy.DDP, precision=Precision(compute=4, master=0))
    states = module_states(result, run)
    assert states.parameters == pytest.approx(4 * (trained + frozen))
    assert states.gradients == pytest.approx(4 * trained)
    assert states.optimizer == pytest.approx(8 * trained)
    with pytest.raises(InvalidValue, match="how they divide Sequential is unknown"):
        module_states(result, TrainingSetup(tensor=2))


def test_module_states_match_the_transformer():
    result = summarize_module(on_meta(small.llama))
    run = TrainingSetup(data=8)
    worst = estimate_memory(result.transformer, run).worst
    states = module_states(result, run)
    assert states.parameters + states.optimizer == pytest.approx(
        worst.parameters + worst.optimizer, abs=2
    )


def test_mixed_layers_are_not_a_stack():
    result = summarize_module(
        on_meta(lambda: nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4, bias=False)]))
    )
    assert result.stacks == ()


def test_repeated_layer_counts_once():
    layer = nn.Linear(4, 4)
    result = summarize_module(nn.ModuleList([layer, layer]))
    assert (result.params, result.stacks) == (20, ())
    assert result.tied == (("0.weight", "1.weight"), ("0.bias", "1.bias"))


def test_non_attention_layers_are_not_a_transformer():
    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(8, 4),
            "layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(3)),
        }
    )
    result = summarize_module(model)
    assert result.transformer is None
    assert "attention has no matrices" in result.unknown[0]


def test_model_with_many_other_weights_is_not_a_transformer():
    module = on_meta(small.llama)
    module.extra = nn.Linear(2048, 2048, device="meta")
    result = summarize_module(module)
    assert result.transformer is None
    assert "as a transformer it would have" in result.unknown[0]


def test_describing_7b_needs_no_memory():
    model = get_known_model("llama2-7b")
    with torch.device("meta"):
        layers = nn.ModuleList(nn.Linear(model.hidden, model.ffn) for _ in range(model.layers))
    result = summarize_module(layers)
    assert result.params == model.layers * model.ffn * (model.hidden + 1)
    assert all(weight.is_meta for weight in layers.parameters())

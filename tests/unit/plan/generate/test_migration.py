import json

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import InvalidValue
from holdfast.plan.generate import accelerate, deepspeed, fsdp2
from holdfast.plan.generate.fields import parse_config
from holdfast.plan.generate.mapping import SETTING_MAPPINGS
from holdfast.plan.generate.migration import ConfigFormat, migrate_settings, write_format
from holdfast.plan.generate.recipe import ComputeDtype, ShardedStates, StateDevice, build_recipe
from holdfast.plan.setup import OptimizerKind, TrainingSetup
from tests.hypothesis_profiles import examples

from .recipe_strategies import common_recipes

TYPICAL = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {
        "stage": 3,
        "stage3_prefetch_bucket_size": 5e7,
        "zero_hpz_partition_size": 4,
    },
    "optimizer": {"type": "Adam", "params": {"lr": 1e-5}},
    "wall_clock_breakdown": False,
}


def content(migration, name):
    return next(file.text for file in migration.files if file.name == name)


def close(one, other):
    """Compare except for rounding of learning rates converted to shares and back."""
    rounded = [
        msgspec.structs.replace(
            each,
            schedule=msgspec.structs.replace(each.schedule, start=round(each.schedule.start, 9)),
        )
        for each in (one, other)
    ]
    return rounded[0] == rounded[1]


@settings(max_examples=examples(150))
@given(common_recipes())
def test_common_settings_round_trip(recipe):
    first = deepspeed.deepspeed_settings(recipe)
    to_fsdp2 = migrate_settings(first, ConfigFormat.FSDP2, recipe.ranks)
    assert close(
        to_fsdp2.recipe,
        msgspec.structs.replace(recipe, schedule=to_fsdp2.recipe.schedule)
        if recipe.optimizer is None
        else recipe,
    )
    to_deepspeed = migrate_settings(
        json.loads(content(to_fsdp2, fsdp2.NAME)), ConfigFormat.DEEPSPEED
    )
    deepspeed_settings = json.loads(content(to_deepspeed, deepspeed.NAME))
    mapped = {entry.key: entry.value for entry in to_fsdp2.mapped}
    after = {
        entry.key: entry.value
        for entry in migrate_settings(deepspeed_settings, ConfigFormat.FSDP2).mapped
    }
    rates = {"scheduler.params.warmup_min_lr"}
    assert {key: value for key, value in after.items() if key not in rates} == {
        key: value for key, value in mapped.items() if key not in rates
    }


def test_every_key_is_accounted_for():
    result = migrate_settings(TYPICAL, ConfigFormat.FSDP2)
    expected = {entry.key for entry in result.mapped} | {
        loss.setting.partition(":")[0] for loss in result.unmapped
    }
    assert expected == {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "bf16.enabled",
        "zero_optimization.stage",
        "zero_optimization.stage3_prefetch_bucket_size",
        "optimizer.type",
        "zero_optimization.zero_hpz_partition_size",
        "optimizer.params.lr",
        "wall_clock_breakdown",
    }


def test_silent_differences_are_reported():
    result = migrate_settings(TYPICAL, ConfigFormat.FSDP2)
    generated = json.loads(content(result, fsdp2.NAME))
    assert result.recipe.ranks == 8
    assert generated["model"]["dtype"] == "float32"
    assert generated["fully_shard"] | {"param_dtype": "", "reduce_dtype": ""} == {
        "reshard_after_forward": 4,
        "param_dtype": "",
        "reduce_dtype": "",
        "offload": "none",
    }
    assert generated["clip_grad_norm"] == 1.0  # DeepSpeed's default
    assert generated["optimizer"]["name"] == "AdamW"
    assert generated["optimizer"]["weight_decay"] == 0.0  # torch's would be 0.01
    assert any("load the model in fp32" in warning for warning in result.warnings)
    assert any("accumulates gradients in bf16" in warning for warning in result.warnings)


def test_missing_fp32_copy_is_preserved():
    bare = TYPICAL | {
        "bf16": {
            "enabled": True,
            "bf16_master_weights_and_grads": True,
            "bf16_optimizer_states": True,
        }
    }
    to_fsdp2 = migrate_settings(bare, ConfigFormat.FSDP2)
    generated = json.loads(content(to_fsdp2, fsdp2.NAME))
    assert generated["model"]["dtype"] == "bfloat16"
    assert any("2.8 %" in warning for warning in to_fsdp2.warnings)
    to_deepspeed = json.loads(
        content(migrate_settings(generated, ConfigFormat.DEEPSPEED), deepspeed.NAME)
    )
    assert to_deepspeed["bf16"] == bare["bf16"]


def test_schedule_learning_rate_takes_precedence():
    rates = {"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_num_steps": 10}}
    result = migrate_settings(TYPICAL | {"scheduler": rates}, ConfigFormat.FSDP2).recipe
    assert result.optimizer.lr == 1e-3  # WarmupDecayLR's default overrides the optimizer
    assert result.schedule.warmup == "log"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("reduce_buket_size", "zero_optimization.reduce_bucket_size"),
        ("stage3_max_live_parameter", "zero_optimization.stage3_max_live_parameters"),
        ("offload_optimiser", None),
    ],
)
def test_unknown_key_error_suggests_the_nearest(key, near):
    result = migrate_settings(
        TYPICAL | {"zero_optimization": {"stage": 2, key: 1}}, ConfigFormat.FSDP2
    )
    (why,) = [loss.why for loss in result.unmapped if loss.setting == f"zero_optimization.{key}: 1"]
    assert "unknown setting" in why
    assert near is None or why.endswith(f"did you mean {near}?")


def test_ineffective_setting_is_not_mapped():
    idle = {"stage": 1, "offload_param": {"device": "cpu"}, "zero_hpz_partition_size": 8}
    result = migrate_settings(TYPICAL | {"zero_optimization": idle}, ConfigFormat.FSDP2)
    assert result.recipe.parameter_placement.device is StateDevice.GPU
    ineffective = {
        loss.setting.partition(":")[0]
        for loss in result.unmapped
        if "no effect in this ZeRO stage" in loss.why
    }
    assert ineffective == {
        "zero_optimization.offload_param.device",
        "zero_optimization.zero_hpz_partition_size",
    }


def test_all_problems_are_reported_together():
    wrong = {
        "train_batch_size": 33,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": "x",
        "bf16": {"enabled": True},
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 4},
        "scheduler": {"type": "WarmupCosineLR"},
    }
    with pytest.raises(InvalidValue) as caught:
        migrate_settings(wrong, ConfigFormat.FSDP2, ranks=4)
    for part in (
        "stage",
        "mutually exclusive",
        "gradient_accumulation_steps",
        "train_batch_size is 33",
        "total_num_steps",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "parameter"),
    [
        ("WarmupCosineLR", "warmup_min_lr"),
        ("WarmupCosineLR", "warmup_max_lr"),
        ("WarmupLR", "total_num_steps"),
        ("WarmupDecayLR", "warmup_min_ratio"),
        ("WarmupDecayLR", "warmup_steps"),
    ],
)
def test_parameters_that_a_schedule_lacks_are_problems(kind, parameter):
    """DeepSpeed passes them to the schedule's constructor, which raises a TypeError."""
    parameters = {"warmup_num_steps": 5, "total_num_steps": 9, parameter: 1}
    config = TYPICAL | {"scheduler": {"type": kind, "params": parameters}}
    with pytest.raises(InvalidValue, match=f"{parameter}: {kind} has no such parameter"):
        migrate_settings(config, ConfigFormat.FSDP2)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"a": 1},
        {"zero_optimization": []},
        {"train_batch_size": float("nan")},
        {"train_batch_size": -1},
        {"train_batch_size": 10**400},
        {3: 4},
        {"optimizer": {"params": {"betas": [1, 2, 3]}}},
        {"optimizer": {"params": {"betas": "xy"}}},
        {
            "train_batch_size": 1e18,
            "train_micro_batch_size_per_gpu": 7,
            "gradient_accumulation_steps": 3,
        },
        {"zero_optimization": {"stage": 3, "mics_shard_size": 3}},
        {"framework": "fsdp2", "mesh": {"shard": 0}},
        {"framework": "fsdp2", "fully_shard": {"param_dtype": "int8"}},
        {"fsdp_config": {"fsdp_version": "x"}},
        {"deepspeed_config": {"deepspeed_config_file": "a.json"}},
        {"distributed_type": "DEEPSPEED"},
        {"fsdp_config": {"fsdp_sharding_strategy": "SHARD_IT"}},
    ],
)
def test_malformed_groups_give_one_sentence(config):
    with pytest.raises(InvalidValue) as caught:
        migrate_settings(config, ConfigFormat.TORCHTITAN)
    assert "\n" not in str(caught.value)


def outcome(config, to, ranks):
    """Return the error, or the names of the files."""
    try:
        return [file.name for file in migrate_settings(config, to, ranks).files]
    except InvalidValue as error:
        return [str(error)]


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.sampled_from(["auto", "cpu", "nvme", "bf16", 3, 10**30, {}, {"device": "cpu"}]),
)


@settings(max_examples=examples(300))
@given(
    st.dictionaries(
        st.sampled_from([*sorted(SETTING_MAPPINGS), *fsdp2.KNOWN, *accelerate.KNOWN]),
        VALUES,
        max_size=12,
    ),
    st.sampled_from(ConfigFormat),
    st.integers(0, 8),
)
def test_any_values_convert_or_are_rejected(flat, to, ranks):
    config = {}
    for key, value in flat.items():
        *above, name = key.split(".")
        node = config
        for part in above:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        node[name] = value
    expected = outcome(config, to, ranks)
    assert expected
    assert "\n" not in expected[0]


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "{",
        "a: [",
        '{"a": 1, "a": 2}',
        "[" * 100_000,
        "{" * 5000,
        "x" * (1 << 21),
        "\x00",
        "a: &a [*a]\n- b",
    ],
)
def test_malformed_texts_give_one_sentence(text):
    with pytest.raises(InvalidValue):
        parse_config(text, "file")


def test_self_referencing_yaml_is_rejected():
    loop = {"zero_optimization": {"stage": 1}}
    loop["zero_optimization"]["more"] = loop
    with pytest.raises(InvalidValue, match="too deeply"):
        migrate_settings(loop, ConfigFormat.FSDP2)


def test_yaml_scientific_numbers_are_parsed():
    config = parse_config(
        "train_micro_batch_size_per_gpu: 8\noptimizer: {type: AdamW, params: {lr: 1e-5}}", "x.yaml"
    )
    assert config["optimizer"]["params"]["lr"] == "1e-5"
    assert migrate_settings(config, ConfigFormat.FSDP2).recipe.optimizer.lr == 1e-5


def test_auto_is_reported_as_unknown():
    result = migrate_settings(
        TYPICAL | {"train_batch_size": "auto", "gradient_clipping": "auto"}, ConfigFormat.FSDP2
    )
    assert any("train_batch_size, gradient_clipping" in warning for warning in result.warnings)


def test_values_that_need_ranks_are_not_guessed():
    config = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2}
    with pytest.raises(InvalidValue, match="number of ranks"):
        migrate_settings(config, ConfigFormat.FSDP2)
    assert migrate_settings(config, ConfigFormat.FSDP2, 8).recipe.accumulation == 4


def test_unsupported_optimizer_is_left_to_the_script():
    setup = TrainingSetup(data=2, optimizer=OptimizerKind.ADAMW_8BIT)
    for name in (ConfigFormat.DEEPSPEED, ConfigFormat.FSDP2, ConfigFormat.TORCHTITAN):
        generated = write_format(build_recipe(setup, None), name)
        assert any("8 bits" in loss.setting for loss in generated.unmapped)
        assert "8 bits" not in "".join(
            file.text for file in generated.files if file.name != fsdp2.NAME
        )


def test_accelerate_references_deepspeed_json_unchanged():
    result = migrate_settings(TYPICAL, ConfigFormat.ACCELERATE_DEEPSPEED)
    assert json.loads(content(result, deepspeed.NAME)) == TYPICAL
    assert not result.unmapped


def test_same_format_is_rejected():
    with pytest.raises(InvalidValue, match="already"):
        migrate_settings(TYPICAL, ConfigFormat.DEEPSPEED)


# Accelerate's converter drops the replicas of HYBRID_SHARD, converts NO_SHARD to ZeRO-2 and keeps
# numbers


@pytest.mark.parametrize("word", ["HYBRID_SHARD", 4, "4"])
def test_hybrid_sharding_keeps_replicas(word):
    config = {
        "distributed_type": "FSDP",
        "num_processes": 16,
        "num_machines": 2,
        "fsdp_config": {"fsdp_sharding_strategy": word},
    }
    result = migrate_settings(config, ConfigFormat.FSDP2)
    assert json.loads(content(result, fsdp2.NAME))["mesh"] == {"replicate": 2, "shard": 8}
    assert any(
        "2 replicas of 8 shards" in loss.setting
        for loss in migrate_settings(config, ConfigFormat.DEEPSPEED).unmapped
    )


@pytest.mark.parametrize("key", ["fsdp_sharding_strategy", "fsdp_reshard_after_forward"])
def test_no_shard_is_ddp(key):
    config = {"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": {key: "NO_SHARD"}}
    result = migrate_settings(config, ConfigFormat.FSDP2)
    assert result.recipe.sharded_states is ShardedStates.NOTHING
    assert json.loads(content(result, fsdp2.NAME))["mesh"] == {"replicate": 4, "shard": 1}
    assert (
        json.loads(content(migrate_settings(config, ConfigFormat.DEEPSPEED), deepspeed.NAME))[
            "zero_optimization"
        ]["stage"]
        == 0
    )


def test_accelerate_formats_convert_to_each_other():
    first = migrate_settings(
        TYPICAL | {"zero_optimization": {"stage": 3}, "gradient_clipping": 0.0},
        ConfigFormat.ACCELERATE_FSDP2,
    )
    plugin = migrate_settings(
        yaml.safe_load(first.files[0].text), ConfigFormat.ACCELERATE_DEEPSPEED
    )
    block = yaml.safe_load(plugin.files[0].text)
    assert block["deepspeed_config"]["zero_stage"] == 3
    to_deepspeed = migrate_settings(block, ConfigFormat.ACCELERATE_FSDP2)
    assert yaml.safe_load(to_deepspeed.files[0].text) == yaml.safe_load(first.files[0].text)


def test_each_row_has_a_counterpart_or_a_reason():
    assert [
        key for key, entry in SETTING_MAPPINGS.items() if bool(entry.fsdp2) is bool(entry.reason)
    ] == []
    assert [
        key
        for key, entry in SETTING_MAPPINGS.items()
        if entry.fsdp2 and entry.fsdp2 not in fsdp2.KNOWN
    ] == []


#: For each mapped key, a non-default value, with the keys it needs to have an effect.
_STAGE3 = {"zero_optimization.stage": 3}
CHANGES = {
    "train_batch_size": {"train_batch_size": 64, "train_micro_batch_size_per_gpu": None},
    "train_micro_batch_size_per_gpu": {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": None,
    },
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 4, "train_batch_size": None},
    "gradient_clipping": {"gradient_clipping": 0.3},
    "zero_optimization.stage": {"zero_optimization.stage": 1},
    "zero_optimization.zero_hpz_partition_size": {"zero_optimization.zero_hpz_partition_size": 2},
    "zero_optimization.mics_shard_size": {"zero_optimization.mics_shard_size": 4},
    "zero_optimization.offload_optimizer.device": {
        "zero_optimization.offload_optimizer.device": "cpu"
    },
    "zero_optimization.offload_param.device": {"zero_optimization.offload_param.device": "cpu"},
    "zero_optimization.cpu_offload": {"zero_optimization.cpu_offload": True},
    "zero_optimization.cpu_offload_param": {"zero_optimization.cpu_offload_param": True},
    "zero_optimization.offload_optimizer.pin_memory": {
        "zero_optimization.offload_optimizer.pin_memory": False,
        "zero_optimization.offload_optimizer.device": "cpu",
    },
    "zero_optimization.offload_param.pin_memory": {
        "zero_optimization.offload_param.pin_memory": False,
        "zero_optimization.offload_param.device": "cpu",
    },
    "bf16.enabled": {"bf16.enabled": True},
    "bfloat16.enabled": {"bfloat16.enabled": True},
    "bf16.bf16_master_weights_and_grads": {
        "bf16.enabled": True,
        "bf16.bf16_master_weights_and_grads": True,
    },
    "bf16.bf16_optimizer_states": None,  # DeepSpeed requires the previous key
    "fp16.enabled": {"fp16.enabled": True},
    "fp16.loss_scale": {"fp16.enabled": True, "fp16.loss_scale": 64},
    "fp16.initial_scale_power": {"fp16.enabled": True, "fp16.initial_scale_power": 8},
    "fp16.loss_scale_window": {"fp16.enabled": True, "fp16.loss_scale_window": 10},
    "torch_autocast.enabled": {"torch_autocast.enabled": True},
    "torch_autocast.dtype": {"torch_autocast.enabled": True, "torch_autocast.dtype": "fp16"},
    "communication_data_type": {"communication_data_type": "bf16"},
    "optimizer.type": {"optimizer.type": "SGD"},
    "optimizer.params.lr": {"optimizer.params.lr": 0.5},
    "optimizer.params.betas": {"optimizer.params.betas": [0.1, 0.2]},
    "optimizer.params.eps": {"optimizer.params.eps": 0.1},
    "optimizer.params.weight_decay": {"optimizer.params.weight_decay": 0.3},
    "optimizer.params.momentum": {"optimizer.type": "SGD", "optimizer.params.momentum": 0.3},
    "optimizer.params.adam_w_mode": {"optimizer.params.adam_w_mode": False},
    "scheduler.type": {"scheduler.type": "WarmupLR"},
    "scheduler.params.warmup_num_steps": {
        "scheduler.type": "WarmupLR",
        "scheduler.params.warmup_num_steps": 7,
    },
    "scheduler.params.total_num_steps": {
        "scheduler.type": "WarmupDecayLR",
        "scheduler.params.total_num_steps": 7,
    },
    "scheduler.params.warmup_type": {
        "scheduler.type": "WarmupLR",
        "scheduler.params.warmup_type": "linear",
    },
    "scheduler.params.warmup_min_lr": {
        "scheduler.type": "WarmupLR",
        "scheduler.params.warmup_min_lr": 1e-6,
    },
    "scheduler.params.warmup_max_lr": {
        "scheduler.type": "WarmupLR",
        "scheduler.params.warmup_max_lr": 0.25,
    },
    "scheduler.params.warmup_min_ratio": {
        "scheduler.type": "WarmupCosineLR",
        "scheduler.params.total_num_steps": 9,
        "scheduler.params.warmup_min_ratio": 0.5,
    },
    "scheduler.params.cos_min_ratio": {
        "scheduler.type": "WarmupCosineLR",
        "scheduler.params.total_num_steps": 9,
        "scheduler.params.cos_min_ratio": 0.5,
    },
    "activation_checkpointing.cpu_checkpointing": {
        "activation_checkpointing.cpu_checkpointing": True
    },
    **{
        f"zero_optimization.{name}": {f"zero_optimization.{name}": True}
        for name in (
            "stage3_gather_16bit_weights_on_model_save",
            "gather_16bit_weights_on_model_save",
            "stage3_gather_fp16_weights_on_model_save",
        )
    },
}
_USUAL = {
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 4,
    "optimizer.type": "Adam",
} | _STAGE3


def test_every_mapping_is_exercised():
    assert set(CHANGES) == {key for key, entry in SETTING_MAPPINGS.items() if entry.is_mapped}


def _fsdp2_settings(flat):
    from holdfast.plan.generate.fields import nest_keys

    return parse_config(
        content(migrate_settings(nest_keys(flat), ConfigFormat.FSDP2, 8), fsdp2.NAME), "x"
    )


@pytest.mark.parametrize("key", [key for key, change in CHANGES.items() if change])
def test_mapped_setting_changes_its_counterpart(key):
    def at(tree, path):
        for part in path.split("."):
            tree = tree.get(part, {}) if isinstance(tree, dict) else {}
        return tree

    change = CHANGES[key]
    without = {name: value for name, value in change.items() if name != key}
    if key.endswith(".enabled"):
        without = {}
    elif key == "scheduler.params.total_num_steps":
        without[key] = 9
    before, after = _fsdp2_settings(_USUAL | without), _fsdp2_settings(_USUAL | change)
    node = SETTING_MAPPINGS[key].fsdp2
    assert at(before, node) != at(after, node)


def test_dtype_names_match_everywhere():
    assert set(fsdp2.DTYPES) == set(ComputeDtype)

"""Accelerate's YAML, with FSDP2 or DeepSpeed: written from a recipe, and read into one.

Keys and their meaning: version 1.15, commands/config/config_args.py, utils/launch.py,
parallelism_config.py and utils/fsdp_utils.py. Learning rate, batch and, under FSDP2, clipping are
set in the script.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import yaml

from holdfast.plan.generate import deepspeed
from holdfast.plan.generate.fields import ConfigReader
from holdfast.plan.generate.generated import ConfigFile, UnmappedSetting, WrittenConfig
from holdfast.plan.generate.recipe import (
    ComputeDtype,
    OffloadPlacement,
    Recipe,
    ShardedStates,
    StateDevice,
)
from holdfast.plan.setup import ActivationCheckpointing

FSDP_NAME, DEEPSPEED_NAME = "accelerate_fsdp2.yaml", "accelerate_deepspeed.yaml"
#: Keys that identify the file.
KEYS = frozenset({"fsdp_config", "deepspeed_config", "distributed_type", "compute_environment"})
_F, _D, _P = "fsdp_config.", "deepspeed_config.", "parallelism_config.parallelism_config_"
KNOWN = (
    "distributed_type",
    "mixed_precision",
    "num_processes",
    f"{_F}fsdp_version",
    f"{_F}fsdp_reshard_after_forward",
    f"{_F}fsdp_sharding_strategy",
    f"{_F}fsdp_offload_params",
    f"{_F}fsdp_activation_checkpointing",
    f"{_F}fsdp_activation_checkpointing_offload",
    f"{_F}fsdp_state_dict_type",
    f"{_P}dp_replicate_size",
    f"{_P}dp_shard_size",
    f"{_D}zero_stage",
    f"{_D}gradient_accumulation_steps",
    f"{_D}gradient_clipping",
    f"{_D}offload_optimizer_device",
    f"{_D}offload_param_device",
    f"{_D}offload_optimizer_nvme_path",
    f"{_D}offload_param_nvme_path",
    f"{_D}zero3_save_16bit_model",
)
#: Keys about machines or FSDP's layer detection: no format needs them, so nothing is lost.
_IGNORED = (
    "compute_environment",
    "machine_rank",
    "main_process_ip",
    "main_process_port",
    "main_training_function",
    "rdzv_backend",
    "same_network",
    "use_cpu",
    "debug",
    "enable_cpu_affinity",
    "downcast_bf16",
    "gpu_ids",
    f"{_F}fsdp_auto_wrap_policy",
    f"{_F}fsdp_transformer_layer_cls_to_wrap",
    f"{_F}fsdp_use_orig_params",
    f"{_F}fsdp_cpu_ram_efficient_loading",
    f"{_F}fsdp_sync_module_states",
    f"{_F}fsdp_min_num_params",
    f"{_D}zero3_init_flag",
    f"{_D}deepspeed_multinode_launcher",
)
_DTYPES = {
    "no": ComputeDtype.FP32,
    "fp32": ComputeDtype.FP32,
    "bf16": ComputeDtype.BF16,
    "fp16": ComputeDtype.FP16,
}
_DTYPE_WORDS = {ComputeDtype.FP32: "no", ComputeDtype.BF16: "bf16", ComputeDtype.FP16: "fp16"}
_STATE_DICTS = {"full_state_dict": True, "sharded_state_dict": False, "local_state_dict": False}
_PLACES = {item.value: item for item in StateDevice}
_IN_THE_SCRIPT = "not in Accelerate's file: set it in the script"


class _Strategy(msgspec.Struct, frozen=True):
    sharded: ShardedStates
    hybrid: bool = False


#: FSDP1's strategies, by name and by the number in older files.
_STRATEGIES = {
    "full_shard": _Strategy(ShardedStates.PARAMETERS),
    "1": _Strategy(ShardedStates.PARAMETERS),
    "shard_grad_op": _Strategy(ShardedStates.GRADIENTS),
    "2": _Strategy(ShardedStates.GRADIENTS),
    "no_shard": _Strategy(ShardedStates.NOTHING),
    "3": _Strategy(ShardedStates.NOTHING),
    "hybrid_shard": _Strategy(ShardedStates.PARAMETERS, hybrid=True),
    "4": _Strategy(ShardedStates.PARAMETERS, hybrid=True),
    "hybrid_shard_zero2": _Strategy(ShardedStates.GRADIENTS, hybrid=True),
    "5": _Strategy(ShardedStates.GRADIENTS, hybrid=True),
    "true": _Strategy(ShardedStates.PARAMETERS),
    "false": _Strategy(ShardedStates.GRADIENTS),
}


def read_accelerate(config: ConfigReader, ranks: int = 0) -> Recipe:
    """Read a file into a recipe; problems are collected in ``fields``."""
    for key in _IGNORED:
        config.read_text(key)
    kind = config.read_text("distributed_type")
    ranks = ranks or max(0, config.read_int("num_processes", 0, least=-1))
    dtype = config.read_choice("mixed_precision", _DTYPES, ComputeDtype.FP32)
    common = Recipe(
        ranks=ranks, compute_dtype=dtype, reduce_dtype=dtype, clipping=0.0, optimizer=None
    )
    if any(key.startswith(_D) for key in config.values):
        return _read_deepspeed(config, common)
    if not any(key.startswith(_F) for key in config.values):
        if "deepspeed" in kind.casefold():
            config.problems.append("deepspeed_config is empty")
        return msgspec.structs.replace(common, sharded_states=ShardedStates.NOTHING)
    return _read_fsdp(config, common)


def _read_deepspeed(config: ConfigReader, common: Recipe) -> Recipe:
    if f"{_D}deepspeed_config_file" in config:
        config.problems.append(
            f"{_D}deepspeed_config_file names "
            f"{config.read_text(f'{_D}deepspeed_config_file')!r}: migrate that file instead"
        )
    stage = config.read_choice(
        f"{_D}zero_stage",
        {str(item.value): item for item in ShardedStates},
        ShardedStates.GRADIENTS,
    )
    placements = []
    for kind in ("optimizer", "param"):
        device = config.read_choice(f"{_D}offload_{kind}_device", _PLACES, StateDevice.GPU)
        path = config.read_text(f"{_D}offload_{kind}_nvme_path")
        placements.append(OffloadPlacement(device, path if device is StateDevice.NVME else ""))
    return msgspec.structs.replace(
        common,
        sharded_states=stage,
        optimizer_placement=placements[0],
        parameter_placement=placements[1],
        accumulation=config.read_int(f"{_D}gradient_accumulation_steps", 1, least=1),
        clipping=config.read_float(f"{_D}gradient_clipping", 0.0),
        gather_on_save=config.read_bool(f"{_D}zero3_save_16bit_model"),
    )


def _read_fsdp(config: ConfigReader, common: Recipe) -> Recipe:
    version = config.read_int(f"{_F}fsdp_version", 1)
    strategy = config.read_choice(
        f"{_F}fsdp_sharding_strategy", _STRATEGIES, _Strategy(ShardedStates.PARAMETERS)
    )
    # From version 2 on only this key counts; before, either key names the strategy.
    strategy = config.read_choice(f"{_F}fsdp_reshard_after_forward", _STRATEGIES, strategy)
    replicas = config.read_int(f"{_P}dp_replicate_size", 1, least=1)
    shard = config.read_int(f"{_P}dp_shard_size", 0)
    ranks = common.ranks or replicas * shard
    nodes = config.read_int("num_machines", 1, least=1)
    if strategy.hybrid and replicas == 1:
        # FSDP1 shards within a node and replicates across nodes.
        replicas = nodes
    if ranks % replicas:
        config.problems.append(f"{replicas} replicas do not divide {ranks} ranks")
        replicas = 1
    placement = (
        OffloadPlacement(StateDevice.CPU)
        if config.read_bool(f"{_F}fsdp_offload_params")
        else OffloadPlacement()
    )
    recompute = config.read_bool(f"{_F}fsdp_activation_checkpointing")
    return msgspec.structs.replace(
        common,
        sharded_states=strategy.sharded,
        ranks=ranks,
        replicas=replicas,
        optimizer_placement=placement,
        parameter_placement=placement
        if strategy.sharded is ShardedStates.PARAMETERS
        else OffloadPlacement(),
        recompute=ActivationCheckpointing.FULL if recompute else ActivationCheckpointing.NONE,
        offload_activations=config.read_bool(f"{_F}fsdp_activation_checkpointing_offload"),
        gather_on_save=config.read_choice(f"{_F}fsdp_state_dict_type", _STATE_DICTS, version == 1),
    )


def _common_keys(recipe: Recipe, kind: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": kind}
    settings["mixed_precision"] = _DTYPE_WORDS[
        recipe.compute_dtype
        if recipe.autocast_dtype is ComputeDtype.FP32
        else recipe.autocast_dtype
    ]
    if recipe.ranks:
        settings["num_processes"] = recipe.ranks
    if recipe.hosts > 1:
        # Each host starts its own ranks; rank and address differ and are options of the command.
        settings |= {"num_machines": recipe.hosts, "rdzv_backend": "static", "same_network": True}
    return settings


def _script_settings(recipe: Recipe) -> Iterator[UnmappedSetting]:
    if recipe.optimizer is not None:
        yield UnmappedSetting("learning rate, schedule, batch", _IN_THE_SCRIPT)
    for name in ("tensor", "pipeline", "context", "expert"):
        if getattr(recipe, name) > 1:
            yield UnmappedSetting(
                f"{name} parallelism of {getattr(recipe, name)}",
                "not written: set tp_size and cp_size in parallelism_config; the model must "
                "support them"
                if name in ("tensor", "context")
                else "not supported by Accelerate",
            )


def write_fsdp2(recipe: Recipe) -> WrittenConfig:
    """Write the FSDP2 form; without sharding DDP, as Accelerate has no mesh of replicas only."""
    is_ddp = recipe.sharded_states is ShardedStates.NOTHING
    settings = _common_keys(recipe, "MULTI_GPU" if is_ddp else "FSDP")
    unmapped = [*_script_settings(recipe), *_unmapped_by_fsdp2(recipe)]
    warnings: list[str] = []
    if is_ddp:
        return _written_file(FSDP_NAME, settings, unmapped, warnings)
    devices = {recipe.optimizer_placement.device, recipe.parameter_placement.device}
    is_offloaded = StateDevice.GPU not in devices
    if not is_offloaded and devices != {StateDevice.GPU}:
        warnings.append(
            "FSDP2 offloads all or nothing: weights, gradients and optimizer states move to the "
            "host"
        )
        is_offloaded = True
    settings["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": recipe.sharded_states is ShardedStates.PARAMETERS,
        "fsdp_offload_params": is_offloaded,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_activation_checkpointing": recipe.recompute is not ActivationCheckpointing.NONE
        or recipe.offload_activations,
        "fsdp_activation_checkpointing_offload": recipe.offload_activations,
        "fsdp_state_dict_type": "FULL_STATE_DICT"
        if recipe.gather_on_save
        else "SHARDED_STATE_DICT",
    }
    if recipe.replicas > 1:
        settings["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": recipe.replicas,
            "parallelism_config_dp_shard_size": recipe.shards,
        }
    return _written_file(FSDP_NAME, settings, unmapped, warnings)


def _unmapped_by_fsdp2(recipe: Recipe) -> Iterator[UnmappedSetting]:
    if recipe.clipping:
        yield UnmappedSetting(
            f"clipping at {recipe.clipping:g}", "call accelerator.clip_grad_norm_ in the script"
        )
    if recipe.accumulation > 1:
        yield UnmappedSetting(
            f"accumulation of {recipe.accumulation}",
            "use Accelerator(gradient_accumulation_steps=...) and accelerator.accumulate",
        )
    if (
        recipe.compute_dtype is not ComputeDtype.FP32
        and recipe.reduce_dtype is not recipe.compute_dtype
    ):
        yield UnmappedSetting(
            f"gradients reduced in {recipe.reduce_dtype}",
            f"Accelerate reduces in {recipe.compute_dtype}, unless its plugin is configured "
            "otherwise",
        )
    if not recipe.master:
        yield UnmappedSetting(
            "weights without an fp32 copy",
            "Accelerate loads trained weights in fp32 under mixed precision",
        )
    if recipe.gather_group:
        yield UnmappedSetting(
            f"weights gathered in groups of {recipe.gather_group}",
            "fsdp_reshard_after_forward is true or false",
        )
    devices = (recipe.optimizer_placement.device, recipe.parameter_placement.device)
    if StateDevice.NVME in devices and recipe.sharded_states is not ShardedStates.NOTHING:
        yield UnmappedSetting("NVMe", "FSDP2 offloads only to host memory, which is used instead")


def write_deepspeed(recipe: Recipe) -> WrittenConfig:
    """Write the DeepSpeed form; settings it lacks exist only in DeepSpeed's JSON."""
    settings = _common_keys(recipe, "DEEPSPEED")
    block: dict[str, Any] = {
        **({"deepspeed_multinode_launcher": "standard"} if recipe.hosts > 1 else {}),
        "zero_stage": int(recipe.sharded_states),
        "gradient_accumulation_steps": recipe.accumulation,
        "gradient_clipping": recipe.clipping,
        "zero3_init_flag": recipe.sharded_states is ShardedStates.PARAMETERS,
        "zero3_save_16bit_model": recipe.gather_on_save
        and recipe.sharded_states is ShardedStates.PARAMETERS,
    }
    for kind, placement in (
        ("optimizer", recipe.optimizer_placement),
        ("param", recipe.parameter_placement),
    ):
        block[f"offload_{kind}_device"] = placement.device.value
        if placement.device is StateDevice.NVME:
            block[f"offload_{kind}_nvme_path"] = placement.path or "/local_nvme"
    settings["deepspeed_config"] = block
    return _written_file(DEEPSPEED_NAME, settings, [*_unmapped_by_deepspeed(recipe)], [])


def _unmapped_by_deepspeed(recipe: Recipe) -> Iterator[UnmappedSetting]:
    yield from _script_settings(recipe)
    for item in deepspeed.write_deepspeed_json(recipe).unmapped:
        if "parallelism" not in item.setting:
            yield item
    if recipe.gather_group:
        yield UnmappedSetting(
            f"weights gathered in groups of {recipe.gather_group}",
            "use deepspeed_config_file instead",
        )
    if (
        recipe.compute_dtype is not ComputeDtype.FP32
        and recipe.reduce_dtype is not recipe.compute_dtype
    ):
        yield UnmappedSetting(
            f"gradients reduced in {recipe.reduce_dtype}", "use deepspeed_config_file instead"
        )


def write_pointing_file(recipe: Recipe, config: Mapping[str, Any]) -> WrittenConfig:
    """Write a file that points to DeepSpeed's unchanged JSON."""
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED",
    }
    if recipe.ranks:
        settings["num_processes"] = recipe.ranks
    stage3 = recipe.sharded_states is ShardedStates.PARAMETERS
    settings["deepspeed_config"] = {
        "deepspeed_config_file": deepspeed.NAME,
        "zero3_init_flag": stage3,
    }
    text = json.dumps(config, indent=2, default=str) + "\n"
    json_file = ConfigFile(deepspeed.NAME, text, f"unchanged; {DEEPSPEED_NAME} points to it")
    return WrittenConfig((*_written_file(DEEPSPEED_NAME, settings, [], []).files, json_file))


def _launch_command(name: str, settings: Mapping[str, Any]) -> str:
    command = f"accelerate launch --config_file {name}"
    if settings.get("num_machines", 1) == 1:
        return command
    return (
        f"{command} --machine_rank RANK --main_process_ip HOST --main_process_port 29500, on each "
        f"of {settings['num_machines']} hosts"
    )


def _written_file(
    name: str, settings: dict[str, Any], unmapped: list[UnmappedSetting], warnings: list[str]
) -> WrittenConfig:
    text = yaml.safe_dump(settings, sort_keys=False)
    return WrittenConfig(
        (ConfigFile(name, text, f"for {_launch_command(name, settings)}"),),
        tuple(unmapped),
        tuple(warnings),
    )

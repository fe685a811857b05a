"""Accelerate's YAML: with FSDP2 or DeepSpeed, written from a recipe, and read into one.

Keys and their meaning: version 1.15, commands/config/config_args.py, utils/launch.py, parallelism_config.py and
utils/fsdp_utils.py. Learning rate, batch and, under FSDP2, clipping are the script's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from holdfast.plan.generate import deepspeed
from holdfast.plan.generate.fields import Fields
from holdfast.plan.generate.recipe import Half, Offloaded, Place, Recipe, Sharded
from holdfast.plan.generate.written import File, Loss, Written
from holdfast.plan.setup import Recompute

FSDP_NAME, DEEPSPEED_NAME = "accelerate_fsdp2.yaml", "accelerate_deepspeed.yaml"
#: Keys by which the file is recognised.
KEYS = frozenset({"fsdp_config", "deepspeed_config", "distributed_type", "compute_environment"})
_F, _D, _P = "fsdp_config.", "deepspeed_config.", "parallelism_config.parallelism_config_"
KNOWN = (
    "distributed_type", "mixed_precision", "num_processes", f"{_F}fsdp_version", f"{_F}fsdp_reshard_after_forward",
    f"{_F}fsdp_sharding_strategy", f"{_F}fsdp_offload_params", f"{_F}fsdp_activation_checkpointing",
    f"{_F}fsdp_activation_checkpointing_offload", f"{_F}fsdp_state_dict_type", f"{_P}dp_replicate_size",
    f"{_P}dp_shard_size", f"{_D}zero_stage", f"{_D}gradient_accumulation_steps", f"{_D}gradient_clipping",
    f"{_D}offload_optimizer_device", f"{_D}offload_param_device", f"{_D}offload_optimizer_nvme_path",
    f"{_D}offload_param_nvme_path", f"{_D}zero3_save_16bit_model",
)  # fmt: skip
#: Said of the machines, or of how FSDP finds layers: carried over by no format, and nothing is lost with them.
_BESIDE = (
    "compute_environment", "machine_rank", "main_process_ip", "main_process_port",
    "main_training_function", "rdzv_backend", "same_network", "use_cpu", "debug", "enable_cpu_affinity",
    "downcast_bf16",
    "gpu_ids", f"{_F}fsdp_auto_wrap_policy", f"{_F}fsdp_transformer_layer_cls_to_wrap", f"{_F}fsdp_use_orig_params",
    f"{_F}fsdp_cpu_ram_efficient_loading", f"{_F}fsdp_sync_module_states", f"{_F}fsdp_min_num_params",
    f"{_D}zero3_init_flag", f"{_D}deepspeed_multinode_launcher",
)  # fmt: skip
_HALVES = {"no": Half.FP32, "fp32": Half.FP32, "bf16": Half.BF16, "fp16": Half.FP16}
_WORDS = {Half.FP32: "no", Half.BF16: "bf16", Half.FP16: "fp16"}
_STATE_DICTS = {"full_state_dict": True, "sharded_state_dict": False, "local_state_dict": False}
_PLACES = {each.value: each for each in Place}
_IN_THE_SCRIPT = "Accelerate's file does not say it: it is in the script"


class _Strategy(msgspec.Struct, frozen=True):
    sharded: Sharded
    hybrid: bool = False


#: FSDP1's, by name and by the number that older files have.
_STRATEGIES = {
    "full_shard": _Strategy(Sharded.PARAMETERS), "1": _Strategy(Sharded.PARAMETERS),
    "shard_grad_op": _Strategy(Sharded.GRADIENTS), "2": _Strategy(Sharded.GRADIENTS),
    "no_shard": _Strategy(Sharded.NOTHING), "3": _Strategy(Sharded.NOTHING),
    "hybrid_shard": _Strategy(Sharded.PARAMETERS, hybrid=True), "4": _Strategy(Sharded.PARAMETERS, hybrid=True),
    "hybrid_shard_zero2": _Strategy(Sharded.GRADIENTS, hybrid=True), "5": _Strategy(Sharded.GRADIENTS, hybrid=True),
    "true": _Strategy(Sharded.PARAMETERS), "false": _Strategy(Sharded.GRADIENTS),
}  # fmt: skip


def read(fields: Fields, ranks: int = 0) -> Recipe:
    """What a file means. What is wrong is noted in ``fields``."""
    for key in _BESIDE:
        fields.text(key)
    kind = fields.text("distributed_type")
    ranks = ranks or max(0, fields.whole("num_processes", 0, least=-1))
    half = fields.word("mixed_precision", _HALVES, Half.FP32)
    common = Recipe(ranks=ranks, half=half, reduced=half, clipping=0.0, descent=None)
    if any(key.startswith(_D) for key in fields.given):
        return _deepspeed(fields, common)
    if not any(key.startswith(_F) for key in fields.given):
        if "deepspeed" in kind.casefold():
            fields.problems.append("deepspeed_config is empty")
        return msgspec.structs.replace(common, sharded=Sharded.NOTHING)
    return _fsdp(fields, common)


def _deepspeed(fields: Fields, common: Recipe) -> Recipe:
    if f"{_D}deepspeed_config_file" in fields:
        fields.problems.append(
            f"{_D}deepspeed_config_file names {fields.text(f'{_D}deepspeed_config_file')!r}: migrate that file instead"
        )
    stage = fields.word(f"{_D}zero_stage", {str(each.value): each for each in Sharded}, Sharded.GRADIENTS)
    places = []
    for what in ("optimizer", "param"):
        device = fields.word(f"{_D}offload_{what}_device", _PLACES, Place.GPU)
        path = fields.text(f"{_D}offload_{what}_nvme_path")
        places.append(Offloaded(device, path if device is Place.NVME else ""))
    return msgspec.structs.replace(
        common, sharded=stage, optimizer_on=places[0], parameters_on=places[1],
        accumulation=fields.whole(f"{_D}gradient_accumulation_steps", 1, least=1),
        clipping=fields.number(f"{_D}gradient_clipping", 0.0),
        whole_save=fields.flag(f"{_D}zero3_save_16bit_model"),
    )  # fmt: skip


def _fsdp(fields: Fields, common: Recipe) -> Recipe:
    version = fields.whole(f"{_F}fsdp_version", 1)
    strategy = fields.word(f"{_F}fsdp_sharding_strategy", _STRATEGIES, _Strategy(Sharded.PARAMETERS))
    # From version 2 on this alone counts; before, either word names the strategy.
    strategy = fields.word(f"{_F}fsdp_reshard_after_forward", _STRATEGIES, strategy)
    replicas = fields.whole(f"{_P}dp_replicate_size", 1, least=1)
    shard = fields.whole(f"{_P}dp_shard_size", 0)
    ranks = common.ranks or replicas * shard
    nodes = fields.whole("num_machines", 1, least=1)
    if strategy.hybrid and replicas == 1:
        # FSDP1 shards inside a node and copies between nodes.
        replicas = nodes
    if ranks % replicas:
        fields.problems.append(f"{replicas} replicas do not divide {ranks} ranks")
        replicas = 1
    away = Offloaded(Place.CPU) if fields.flag(f"{_F}fsdp_offload_params") else Offloaded()
    recompute = fields.flag(f"{_F}fsdp_activation_checkpointing")
    return msgspec.structs.replace(
        common, sharded=strategy.sharded, ranks=ranks, replicas=replicas, optimizer_on=away,
        parameters_on=away if strategy.sharded is Sharded.PARAMETERS else Offloaded(),
        recompute=Recompute.FULL if recompute else Recompute.NONE,
        recomputed_on_cpu=fields.flag(f"{_F}fsdp_activation_checkpointing_offload"),
        whole_save=fields.word(f"{_F}fsdp_state_dict_type", _STATE_DICTS, version == 1),
    )  # fmt: skip


def _common(recipe: Recipe, kind: str) -> dict[str, Any]:
    flat: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": kind}
    flat["mixed_precision"] = _WORDS[recipe.half if recipe.autocast is Half.FP32 else recipe.autocast]
    if recipe.ranks:
        flat["num_processes"] = recipe.ranks
    return flat


def _script_losses(recipe: Recipe) -> list[Loss]:
    losses = [Loss("learning rate, schedule, batch", _IN_THE_SCRIPT)] if recipe.descent is not None else []
    losses += [
        Loss(f"{name} parallelism of {getattr(recipe, name)}",
             "not written: parallelism_config has tp_size and cp_size, "
             "and the model has to fit" if name in ("tensor", "context") else "Accelerate has none")
        for name in ("tensor", "pipeline", "context", "expert")
        if getattr(recipe, name) > 1
    ]  # fmt: skip
    return losses


def write_fsdp2(recipe: Recipe) -> Written:
    """With FSDP2; where nothing is sharded, DDP, as Accelerate allows no mesh of replicas alone."""
    losses = _script_losses(recipe)
    warnings: list[str] = []
    whole = recipe.sharded is Sharded.NOTHING
    flat = _common(recipe, "MULTI_GPU" if whole else "FSDP")
    if recipe.clipping:
        losses.append(Loss(f"clipping at {recipe.clipping:g}", "call accelerator.clip_grad_norm_ in the script"))
    if recipe.accumulation > 1:
        losses.append(Loss(f"accumulation of {recipe.accumulation}",
                           "give Accelerator(gradient_accumulation_steps=...) and accelerator.accumulate"))  # fmt: skip
    if recipe.half is not Half.FP32 and recipe.reduced is not recipe.half:
        losses.append(Loss(f"gradients reduced in {recipe.reduced}",
                           f"Accelerate reduces in {recipe.half}, unless its plugin is told otherwise"))  # fmt: skip
    if not recipe.master:
        losses.append(
            Loss("weights without an fp32 copy", "Accelerate loads trained weights in fp32 under mixed precision")
        )
    if recipe.kept_among:
        losses.append(
            Loss(f"weights kept in groups of {recipe.kept_among}", "fsdp_reshard_after_forward is true or false")
        )
    if whole:
        return _file(FSDP_NAME, flat, losses, warnings)
    away = Place.GPU not in (recipe.optimizer_on.device, recipe.parameters_on.device)
    if not away and {recipe.optimizer_on.device, recipe.parameters_on.device} != {Place.GPU}:
        warnings.append("FSDP2 offloads all or nothing: weights, gradients and optimizer states all go to the host")
        away = True
    if Place.NVME in (recipe.optimizer_on.device, recipe.parameters_on.device):
        losses.append(Loss("NVMe", "FSDP2 offloads to the host's memory alone: it goes there"))
    flat["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": recipe.sharded is Sharded.PARAMETERS,
        "fsdp_offload_params": away,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_activation_checkpointing": recipe.recompute is not Recompute.NONE or recipe.recomputed_on_cpu,
        "fsdp_activation_checkpointing_offload": recipe.recomputed_on_cpu,
        "fsdp_state_dict_type": "FULL_STATE_DICT" if recipe.whole_save else "SHARDED_STATE_DICT",
    }
    if recipe.replicas > 1:
        flat["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": recipe.replicas,
            "parallelism_config_dp_shard_size": recipe.shards,
        }
    return _file(FSDP_NAME, flat, losses, warnings)


def write_deepspeed(recipe: Recipe) -> Written:
    """With DeepSpeed's settings in the file itself; what it has no words for is in DeepSpeed's own JSON alone."""
    losses = _script_losses(recipe)
    losses += [each for each in deepspeed.write(recipe).losses if "parallelism" not in each.what]
    flat = _common(recipe, "DEEPSPEED")
    block: dict[str, Any] = {
        "zero_stage": int(recipe.sharded),
        "gradient_accumulation_steps": recipe.accumulation,
        "gradient_clipping": recipe.clipping,
        "zero3_init_flag": recipe.sharded is Sharded.PARAMETERS,
        "zero3_save_16bit_model": recipe.whole_save and recipe.sharded is Sharded.PARAMETERS,
    }
    for what, place in (("optimizer", recipe.optimizer_on), ("param", recipe.parameters_on)):
        block[f"offload_{what}_device"] = place.device.value
        if place.device is Place.NVME:
            block[f"offload_{what}_nvme_path"] = place.path or "/local_nvme"
    flat["deepspeed_config"] = block
    if recipe.kept_among:
        losses.append(Loss(f"weights kept in groups of {recipe.kept_among}", "give deepspeed_config_file instead"))
    if recipe.half is not Half.FP32 and recipe.reduced is not recipe.half:
        losses.append(Loss(f"gradients reduced in {recipe.reduced}", "give deepspeed_config_file instead"))
    return _file(DEEPSPEED_NAME, flat, losses, [])


def write_by_file(recipe: Recipe, config: Mapping[str, Any]) -> Written:
    """With DeepSpeed's own JSON, unchanged, to which the file points."""
    flat: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED"}
    if recipe.ranks:
        flat["num_processes"] = recipe.ranks
    stage3 = recipe.sharded is Sharded.PARAMETERS
    flat["deepspeed_config"] = {"deepspeed_config_file": deepspeed.NAME, "zero3_init_flag": stage3}
    text = json.dumps(config, indent=2, default=str) + "\n"
    own = File(deepspeed.NAME, text, f"to which {DEEPSPEED_NAME} points, as it was")
    return Written((*_file(DEEPSPEED_NAME, flat, [], []).files, own))


def _file(name: str, flat: dict[str, Any], losses: list[Loss], warnings: list[str]) -> Written:
    text = yaml.safe_dump(flat, sort_keys=False)
    return Written((File(name, text, f"for accelerate launch --config_file {name}"),), tuple(losses), tuple(warnings))

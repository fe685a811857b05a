"""Write a run's configuration files, and convert configurations between frameworks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from holdfast.core.atomic_files import write_atomic
from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.text import os_error_reason
from holdfast.plan.generate.fields import parse_config
from holdfast.plan.generate.fsdp_script import read_script
from holdfast.plan.generate.generated import ConfigFile
from holdfast.plan.generate.migration import ConfigFormat, Migration, migrate_settings, write_format
from holdfast.plan.generate.recipe import ComputeDtype, TrainingValues, build_recipe
from holdfast.plan.layout.process_group_code import render_mesh_code
from holdfast.plan.models import KNOWN_MODELS
from holdfast.plan.request.plan_request import PlannedRun, PlanRequest
from holdfast.plan.request.process_groups import checked_process_groups
from holdfast.training.heterogeneous import config
from holdfast.training.heterogeneous.batch_allocation import BatchAllocation

#: A configuration has a few KiB.
_MAX_BYTES = 1 << 18
_GROUPS = "process_groups.py"


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that was written, and its purpose."""

    path: str
    purpose: str


class WrittenFiles(msgspec.Struct, frozen=True, rename={"files": "kept", "omitted": "unsaid"}):
    """The files that were written; ``omitted``: settings of the plan that a file lacks, and why."""

    files: tuple[WrittenFile, ...]
    omitted: tuple[str, ...]


def write_configs(
    request: PlanRequest,
    run: PlannedRun,
    directory: Path,
    allocation: BatchAllocation | None = None,
) -> WrittenFiles:
    """Write all frameworks' files of a run and a program that creates its process groups.

    For GPUs of several kinds, write the batch share of each rank.

    Raises:
        MissingFile: the directory cannot be created, or already has such files.
        InvalidValue: GPUs of several kinds without a batch allocation.
    """
    if len(request.clusters) > 1:
        return _write_shares(request, directory, allocation)
    dtype = {"fp16": ComputeDtype.FP16, "fp32": ComputeDtype.FP32}.get(
        request.resolved_precision, ComputeDtype.BF16
    )
    model_name = (
        request.model.main_transformer.name
        if request.model.submodels and request.model.main_transformer.name in KNOWN_MODELS
        else ""
    )
    recipe = build_recipe(
        run.setup, TrainingValues(compute_dtype=dtype, model=model_name, hosts=run.cluster.nodes)
    )
    # Without the other degrees, a file would start the job on fewer ranks than planned.
    writable = (
        list(ConfigFormat) if recipe.world_size == recipe.ranks else [ConfigFormat.TORCHTITAN]
    )
    configs = {name: write_format(recipe, name) for name in writable}
    files = [file for config in configs.values() for file in config.files]
    groups = ConfigFile(
        _GROUPS,
        render_mesh_code(checked_process_groups(run)),
        f"make_groups() creates all process groups, identically on every rank; {recipe.torchrun} "
        f"{_GROUPS} prints them",
    )
    omitted = [
        f"{name}: not written: it would start {recipe.ranks} of {recipe.world_size} ranks, as its "
        "files have no tensor, pipeline or context parallelism"
        for name in ConfigFormat
        if name not in configs
    ]
    omitted += [
        f"{name}: {setting.setting}: {setting.why}"
        for name, config in configs.items()
        for setting in config.unmapped
    ]
    omitted += [f"{name}: {text}" for name, config in configs.items() for text in config.warnings]
    return WrittenFiles(save_files((*files, groups), directory), tuple(omitted))


def _write_shares(
    request: PlanRequest, directory: Path, allocation: BatchAllocation | None
) -> WrittenFiles:
    """Write the batch share of each rank on GPUs of several kinds."""
    if allocation is None:
        raise InvalidValue(
            "--write",
            why="no batch is allocated to the GPUs of several kinds",
            next_step="add the global batch size, e.g. --batch 64",
        )
    text = config.render_heterogeneous(allocation, request.resolved_precision)
    file = ConfigFile(
        "heterogeneous.yaml", text, "batch share of each rank, for holdfast.read_heterogeneous"
    )
    return WrittenFiles(
        save_files([file], directory),
        ("no framework's file format supports unequal batch shares",),
    )


def save_files(files: Iterable[ConfigFile], directory: Path) -> tuple[WrittenFile, ...]:
    """Write the files to the directory, which is created if necessary; replace no existing file.

    Raises:
        MissingFile: the directory cannot be created, or has one of the files.
    """
    file_list = list(files)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingFile(
            directory, why=os_error_reason(error), next_step="use another directory"
        ) from None
    for file in file_list:
        if (directory / file.name).exists():
            raise MissingFile(
                directory / file.name,
                why="the file exists and is not overwritten",
                next_step="use another directory, or move the file away",
            )
    for file in file_list:
        write_atomic(directory / file.name, file.text.encode())
    return tuple(WrittenFile(str(directory / file.name), file.purpose) for file in file_list)


# ---- conversion


def migrate_config(path: Path, to: str, ranks: int = 0) -> Migration:
    """Convert the configuration file, or the FSDP of a training script, to another format.

    ``to``: ``fsdp2``, ``deepspeed``, ``accelerate-fsdp2``…

    Raises:
        MissingFile, InvalidValue: no such file, or an unsupported configuration.
    """
    text = _read_text(path)
    if path.suffix != ".py":
        return migrate_settings(parse_config(text, str(path)), ConfigFormat(to), ranks)
    script = read_script(text, str(path))
    migration = migrate_settings(script.config, ConfigFormat(to), ranks, of_script=True)
    warnings = migration.warnings
    if script.wrapped:
        names = ", ".join(script.wrapped)
        warnings = (*warnings, f"the script shards each {names}: {_UNITS[migration.to]}")
    unmapped = (*script.unread, *migration.unmapped)
    return msgspec.structs.replace(migration, unmapped=unmapped, warnings=warnings)


#: What to do with the classes of a wrap policy.
_UNITS = {
    ConfigFormat.FSDP2: "call fully_shard on each of them in the script",
    ConfigFormat.ACCELERATE_FSDP2: "set fsdp_transformer_layer_cls_to_wrap to it",
    ConfigFormat.DEEPSPEED: "ZeRO needs no such setting",
    ConfigFormat.ACCELERATE_DEEPSPEED: "ZeRO needs no such setting",
    ConfigFormat.TORCHTITAN: "torchtitan shards each transformer block",
}


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise MissingFile(
            path,
            why=os_error_reason(error),
            next_step="pass a DeepSpeed JSON, an fsdp2.json, an Accelerate YAML or a script",
        ) from None
    if len(content) > _MAX_BYTES:
        raise InvalidValue(path, why=f"larger than {_MAX_BYTES:,} bytes, so not a configuration")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise InvalidValue(path, why="not a text file") from None

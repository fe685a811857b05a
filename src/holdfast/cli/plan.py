"""``holdfast plan``: predict memory use and throughput of a training run, and suggest changes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.general_options import GroupedCommand, OutputFile, OutputFolder, remark
from holdfast.core.errors import InvalidValue
from holdfast.core.exit_status import ERRORS_FOUND, INCONCLUSIVE
from holdfast.plan.setup import (
    ActivationCheckpointing,
    LossKernel,
    OffloadTarget,
    OptimizerKind,
    PipelineSchedule,
    ShardingStrategy,
)

if TYPE_CHECKING:
    from holdfast.plan.advice.shortfall import MeasuredThroughput
    from holdfast.plan.request.plan_request import PlanRequest
    from holdfast.plan.request.planning import PlanResult

_DEGREES = ("tensor", "pipeline", "context", "expert", "replicas", "chunks")
_SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "active")
_PRECISIONS = ("auto", "bf16", "fp16", "fp8", "fp32", "bf16-pure")
_FORMATS = ("fsdp2", "deepspeed", "accelerate-fsdp2", "accelerate-deepspeed", "torchtitan")
_DEFAULT_SEQUENCE = 4096
_RANGE_PATTERN = re.compile(r"(\d{1,7})(?:\.\.|-)(\d{1,7})")
_POINT_PATTERN = re.compile(r"(\d{1,7})\s*:\s*(\d{1,3}(?:\.\d{1,6})?)(%?)")

_COUNT = click.IntRange(1, 1 << 24)

_OPTION_GROUPS = {
    "Job": "on batch sequence micro-batch accumulation host-memory",
    "Parallelism": "strategy tensor pipeline context expert replicas chunks schedule balanced "
    "async-tensor no-reshard bucket-views",
    "Memory and precision": "recompute optimizer fused-optimizer precision reduce offload loss "
    "no-flash compiled unfused-norms",
    "Fine-tuning": "lora quantized freeze",
    "A model without a file": "layers hidden heads kv-heads ffn vocab experts active",
}


def _enum_values(enum: type[StrEnum]) -> list[str]:
    return [member.value for member in enum]


def _parse_gpu_counts(text: str) -> tuple[int, ...]:
    """Parse "8..512" to (8, 512) and "8,16,64" to (8, 16, 64). Raises InvalidValue."""
    matched = _RANGE_PATTERN.fullmatch(text.strip())
    parts = matched.groups() if matched else [part.strip() for part in text[:1000].split(",")]
    counts = tuple(
        int(part) if part.isascii() and part.isdigit() and len(part) < 8 else 0 for part in parts
    )
    if min(counts) < 1 or sorted(set(counts)) != list(counts):
        raise InvalidValue(
            "--scale",
            why=f"{text[:50]!r} is not an increasing range",
            next_step="use 8..512 or 8,16,64",
        )
    return counts


def _parse_measured(text: str) -> tuple[MeasuredThroughput, MeasuredThroughput]:
    """Parse two measurements, "8:0.9,32:0.6" or "8:90%,32:60%". Raises InvalidValue."""
    from holdfast.plan.advice.shortfall import MeasuredThroughput

    points = [_POINT_PATTERN.fullmatch(part.strip()) for part in text[:200].split(",")]
    if len(points) != 2 or points[0] is None or points[1] is None:
        raise InvalidValue(
            "--measured",
            why=f"{text[:50]!r} is not two GPU counts with their efficiency",
            next_step="use 8:0.9,32:0.6",
        )
    first, second = (
        MeasuredThroughput(int(point[1]), float(point[2]) / (100 if point[3] else 1))
        for point in points
        if point
    )
    return first, second


@click.command(cls=GroupedCommand, groups=_OPTION_GROUPS)
@click.argument("model", metavar="[MODEL]", default="")
@click.option(
    "--on", metavar="CLUSTER", help='"16 x A100-80G", "2 x 8 H100 @ 400 Gbit/s", "2 A100 + 2 V100".'
)
@click.option(
    "--batch",
    metavar="N",
    type=_COUNT,
    help="Global batch size in sequences per step; met exactly.",
)
@click.option(
    "--sequence",
    metavar="N",
    type=_COUNT,
    help="Sequence length in tokens (default: 4096 or the model's maximum).",
)
@click.option(
    "--micro-batch",
    metavar="N",
    type=_COUNT,
    help="Sequences per micro-batch and rank (default: the fastest).",
)
@click.option(
    "--accumulation",
    metavar="N",
    type=_COUNT,
    help="Gradient accumulation: micro-batches per step and rank.",
)
@click.option(
    "--strategy",
    type=click.Choice(_enum_values(ShardingStrategy)),
    help="Sharding strategy of data-parallel ranks (default: fsdp2).",
)
@click.option("--tensor", metavar="N", type=_COUNT, help="Tensor-parallel degree.")
@click.option("--pipeline", metavar="N", type=_COUNT, help="Pipeline stages.")
@click.option("--context", metavar="N", type=_COUNT, help="Context-parallel degree.")
@click.option("--expert", metavar="N", type=_COUNT, help="Expert-parallel degree.")
@click.option(
    "--replicas",
    metavar="N",
    type=_COUNT,
    help="Model replicas among the data-parallel ranks (HSDP: with fsdp2, shards within each).",
)
@click.option("--chunks", metavar="N", type=_COUNT, help="Model chunks per pipeline stage.")
@click.option(
    "--schedule",
    type=click.Choice(_enum_values(PipelineSchedule)),
    help="Pipeline schedule (default: 1f1b).",
)
@click.option(
    "--recompute",
    type=click.Choice(_enum_values(ActivationCheckpointing)),
    help="Activation checkpointing (default: the least that fits).",
)
@click.option(
    "--optimizer",
    type=click.Choice(_enum_values(OptimizerKind)),
    default=OptimizerKind.ADAMW.value,
    show_default=True,
    help="Optimizer.",
)
@click.option(
    "--precision",
    type=click.Choice(_PRECISIONS),
    default="auto",
    show_default=True,
    help="Compute dtype; auto: the 16-bit dtype that all GPUs support.",
)
@click.option(
    "--reduce",
    "reduce_dtype",
    type=click.Choice(["fp32", "16-bit"]),
    help="Dtype in which gradients are reduced (default: fp32, as FSDP2 is usually configured).",
)
@click.option(
    "--balanced",
    is_flag=True,
    help="With --context: ranks have equal shares of the causal mask.",
)
@click.option(
    "--async-tensor",
    is_flag=True,
    help="With --tensor: overlap its communication with matrix products.",
)
@click.option(
    "--unfused-norms", is_flag=True, help="RMS norms in several kernels, which save fp32 copies."
)
@click.option(
    "--offload",
    type=click.Choice(_enum_values(OffloadTarget)),
    default=OffloadTarget.NONE.value,
    help="States offloaded to host memory.",
)
@click.option(
    "--host-memory",
    metavar="GIB",
    type=click.FloatRange(1, 1 << 20),
    help="Host memory of each node (default: that of a usual node with such GPUs).",
)
@click.option(
    "--loss",
    type=click.Choice(_enum_values(LossKernel)),
    default=LossKernel.EAGER.value,
    help="Cross-entropy implementation (default: eager).",
)
@click.option(
    "--no-flash", is_flag=True, help="Attention that stores its scores (no flash attention)."
)
@click.option("--compiled", is_flag=True, help="Use torch.compile.")
@click.option("--fused-optimizer", is_flag=True, help="Use a fused optimizer.")
@click.option("--bucket-views", is_flag=True, help="Use DDP's gradient_as_bucket_view.")
@click.option(
    "--no-reshard", is_flag=True, help="Keep gathered parameters from forward to backward."
)
@click.option(
    "--lora",
    metavar="RANK[:MATRICES]",
    default="",
    help="Train LoRA adapters only: 16, or 16:queries,values.",
)
@click.option(
    "--quantized", is_flag=True, help="With --lora: quantize frozen weights to 4 bits (QLoRA)."
)
@click.option(
    "--freeze",
    type=click.Choice(["vision", "language", "all", "none"]),
    help="Which model towers to freeze.",
)
@click.option(
    "--layers", metavar="N", type=_COUNT, help="Instead of MODEL: layers of a Llama-style model."
)
@click.option("--hidden", metavar="N", type=_COUNT, help="Hidden size.")
@click.option("--heads", metavar="N", type=_COUNT, help="Attention heads (default: hidden / 128).")
@click.option(
    "--kv-heads", metavar="N", type=_COUNT, help="Key-value heads (default: same as --heads)."
)
@click.option("--ffn", metavar="N", type=_COUNT, help="Feed-forward size (default: 8/3 of hidden).")
@click.option("--vocab", metavar="N", type=_COUNT, help="Vocabulary size (default: 32000).")
@click.option("--experts", metavar="N", type=_COUNT, help="Experts per layer (default: 1).")
@click.option("--active", metavar="N", type=_COUNT, help="Active experts per token (default: 2).")
@click.option(
    "--scale",
    metavar="FROM..TO",
    help="Predict throughput at these GPU counts, with bottlenecks and remedies.",
)
@click.option(
    "--strong",
    is_flag=True,
    help="With --scale and --measured: strong scaling (constant global batch).",
)
@click.option(
    "--measured",
    metavar="N:E,N:E",
    help="Explain scaling efficiency measured at two GPU counts.",
)
@click.option(
    "--links",
    metavar="FILE",
    type=Path,
    help="Use link measurements of `holdfast bench --save FILE` instead of tables.",
)
@click.option(
    "--simulate",
    is_flag=True,
    help="With FILE.py:FUNCTION: also run one step of the module on fake tensors.",
)
@click.option(
    "--failed",
    metavar="PATH",
    multiple=True,
    help="Log or memory snapshot of a run that ran out of memory: list changes that fix it.",
)
@click.option(
    "--groups",
    is_flag=True,
    help="Print and verify the process groups.",
)
@click.option(
    "--write",
    "directory",
    metavar="DIR",
    type=OutputFolder(),
    help="Write DeepSpeed, FSDP2, Accelerate, torchtitan and process-group configurations.",
)
@click.option(
    "--migrate",
    "config",
    metavar="FILE",
    type=Path,
    help="Instead of a plan: convert a DeepSpeed, FSDP2 or Accelerate configuration, or the FSDP "
    "of a training script.",
)
@click.option(
    "--to",
    metavar="FORMAT",
    type=click.Choice(_FORMATS),
    help=f"With --migrate: target format: {', '.join(_FORMATS)}.",
)
@click.option(
    "--ranks", metavar="N", type=_COUNT, help="With --migrate: number of data-parallel ranks."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html", "html_file", metavar="FILE", type=OutputFile(), help="Write an HTML report."
)
def command(**options: Any) -> int:
    """Predict GPU memory, step time and better layouts of a training run.

    Needs no GPU and no torch. MODEL: a model name (llama3.1-70b, llava-1.6-34b), a Hugging Face
    config.json or its directory, FILE.py:FUNCTION that returns a module (needs torch), or sizes by
    options.

    Options that are omitted are chosen: the fastest setup that fits. Exit status: 0 fits (possibly
    tightly), 1 does not fit, 2 invalid request.
    """
    from holdfast.plan.request.planning import make_plan

    if options["config"] or options["to"]:
        return _migrate(options)
    if options["failed"]:
        return _run_relief(options)
    planned = make_plan(parse_request(options), _report_progress)
    _print_plan(planned, options)
    return planned.exit_status


def _report_progress(activity: str) -> None:
    """Print the current activity if stderr is a terminal."""
    if sys.stderr.isatty():
        remark(f"holdfast: {activity} …")


def parse_request(options: Mapping[str, Any]) -> PlanRequest:
    """Build the plan request from the options. Raises InvalidValue, MissingFile and UnknownName."""
    from msgspec.structs import replace

    from holdfast.plan.advice.scaling import ScalingMode
    from holdfast.plan.hardware import parse_clusters
    from holdfast.plan.request.measured_links import read_measured_links
    from holdfast.plan.request.model import find_model, select_trained_parts
    from holdfast.plan.request.plan_request import PlanRequest

    if not options["on"]:
        raise click.UsageError('--on is required: the GPUs to use, e.g. --on "16 x A100-80G"')
    clusters, links_origin = parse_clusters(options["on"]), ""
    if options["host_memory"]:
        clusters = tuple(replace(each, host_gib=options["host_memory"]) for each in clusters)
    if options["links"]:
        clusters, links_origin = read_measured_links(clusters, options["links"])
    model = find_model(
        options["model"],
        {name: options[name] for name in _SIZES if options[name] is not None},
        _report_progress,
    )
    model = select_trained_parts(
        model, lora=options["lora"], quantized=options["quantized"], freeze=options["freeze"] or ""
    )
    max_positions = model.main_transformer.positions if model.submodels else 0
    sequence = min(_DEFAULT_SEQUENCE, max_positions or _DEFAULT_SEQUENCE)
    return PlanRequest(
        model=model,
        cluster_text=" ".join(options["on"].split()),
        clusters=clusters,
        sequence=options["sequence"] or sequence,
        batch=options["batch"],
        micro_batch=options["micro_batch"],
        accumulation=options["accumulation"],
        strategy=ShardingStrategy(options["strategy"]) if options["strategy"] else None,
        degrees={name: options[name] for name in _DEGREES if options[name] is not None},
        schedule=PipelineSchedule(options["schedule"]) if options["schedule"] else None,
        recompute=ActivationCheckpointing(options["recompute"]) if options["recompute"] else None,
        optimizer=OptimizerKind(options["optimizer"]),
        precision=options["precision"],
        offload=OffloadTarget(options["offload"]),
        loss=LossKernel(options["loss"]),
        flash=not options["no_flash"],
        compiled=options["compiled"],
        fused_optimizer=options["fused_optimizer"],
        bucket_views=options["bucket_views"],
        reshard=not options["no_reshard"],
        reduce_16_bits=options["reduce_dtype"] == "16-bit",
        balanced=options["balanced"],
        async_tensor=options["async_tensor"],
        fused_norms=not options["unfused_norms"],
        simulate=options["simulate"],
        gpu_counts=_parse_gpu_counts(options["scale"]) if options["scale"] else (),
        scaling_mode=ScalingMode.STRONG if options["strong"] else ScalingMode.WEAK,
        measured=_parse_measured(options["measured"]) if options["measured"] else None,
        links_origin=links_origin,
    )


def _print_plan(result: PlanResult, options: Mapping[str, Any]) -> None:
    from holdfast.plan.request.presentation import plan_view

    files = None
    if options["directory"]:
        from holdfast.plan.request.config_files import write_configs

        files = write_configs(result.request, result.run, options["directory"], result.allocation)
    view = plan_view(
        result, with_groups=options["groups"], with_drawings=bool(options["html_file"]), files=files
    )
    if options["html_file"]:
        from holdfast.core.atomic_files import write_atomic
        from holdfast.plan.render.page import plan_page

        write_atomic(options["html_file"], plan_page(view).encode())
    if options["as_json"]:
        from holdfast.plan.request.json import plan_json
        from holdfast.report.json import write_json

        write_json(sys.stdout, plan_json(result, files, with_groups=options["groups"]))
        return
    from holdfast.plan.render.summary import plan_document
    from holdfast.report.sheet import draw_document

    draw_document(plan_document(view), sys.stdout, None if sys.stdout.isatty() else 100)


def _run_relief(options: Mapping[str, Any]) -> int:
    """Print changes that avoid an out-of-memory error. Raises InvalidValue and MissingFile."""
    from holdfast.plan.request.relief import plan_relief, relief_document, relief_json
    from holdfast.report.sheet import draw_document

    relief = plan_relief(parse_request(options), options["failed"])
    if options["as_json"]:
        from holdfast.report.json import envelope, write_json

        write_json(
            sys.stdout,
            envelope("plan", [relief.cause] if relief.cause else (), None, **relief_json(relief)),
        )
    else:
        draw_document(relief_document(relief), sys.stdout, None if sys.stdout.isatty() else 100)
    return ERRORS_FOUND if relief.cause is not None else INCONCLUSIVE


def _migrate(options: Mapping[str, Any]) -> int:
    """Convert a configuration and print or write its files. Raises InvalidValue and MissingFile."""
    from holdfast.plan.render.migration import MigrationView, join_files, migration_document
    from holdfast.plan.request.config_files import migrate_config, save_files
    from holdfast.report.sheet import draw_document

    if not (options["config"] and options["to"]):
        raise click.UsageError("--migrate and --to must be used together")
    migration = migrate_config(options["config"], options["to"], options["ranks"] or 0)
    written = save_files(migration.files, options["directory"]) if options["directory"] else ()
    if options["as_json"]:
        from holdfast.report.json import envelope, write_json

        write_json(sys.stdout, envelope("plan", (), None, migration=migration, written=written))
        return 0
    view = MigrationView(
        origin=migration.origin,
        to=migration.to,
        unmapped=tuple((item.setting, item.why) for item in migration.unmapped),
        mapped=tuple(
            (item.key, item.value, item.target, item.difference) for item in migration.mapped
        ),
        warnings=migration.warnings,
        written=bool(written),
        files=tuple((item.path, item.purpose) for item in written)
        or tuple((item.name, item.text) for item in migration.files),
    )
    draw_document(
        migration_document(view),
        sys.stdout if written else sys.stderr,
        None if sys.stdout.isatty() else 100,
    )
    if not written:
        click.echo(join_files(view.files), nl=False)
    return 0

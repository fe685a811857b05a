"""``holdfast ckpt convert``: convert a checkpoint to another framework's format."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.ckpt.parameter_order import order_options, read_order
from holdfast.core.errors import InvalidValue
from holdfast.core.exit_status import ERRORS_FOUND, OK

if TYPE_CHECKING:
    from holdfast.ckpt.convert.pipeline import ConversionRequest, ConversionResult

_DTYPES = ("float32", "bfloat16", "float16", "float64")
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = "kmgt"


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option(
    "--to",
    metavar="FORMAT",
    required=True,
    help="safetensors, huggingface, torch, lightning, accelerate, dcp (FSDP), torchtitan, "
    "holdfast, zero1, zero2, zero3 or universal (DeepSpeed).",
)
@click.option(
    "--ranks",
    metavar="N",
    type=click.IntRange(1, 1 << 20),
    help="Data-parallel ranks of the target, for sharded formats (default: as SRC, or 1).",
)
@click.option(
    "--dtype", type=click.Choice(_DTYPES), help="Cast weights to this dtype (default: unchanged)."
)
@click.option(
    "--form",
    metavar="NAME",
    default="",
    help="Variant of FORMAT, if it has several (default: its first).",
)
@click.option(
    "--shard-size",
    metavar="SIZE",
    default="5GB",
    show_default=True,
    help="Maximum size of each safetensors file.",
)
@click.option(
    "--tag", metavar="NAME", default="", help="DeepSpeed checkpoint tag (default: global_stepN)."
)
@click.option(
    "--optimizer-key",
    metavar="NAME",
    default="optimizer",
    show_default=True,
    help="Key of the optimizer in DCP (optim, optimizer_state_dict, ...).",
)
@click.option("--no-optimizer", is_flag=True, help="Convert only the model.")
@click.option(
    "--map",
    "maps",
    metavar="OLD=NEW",
    multiple=True,
    help="Rename a tensor or a module and everything in it. s/PATTERN/NEW/ is a regular "
    "expression; @FILE holds one map per line. Repeatable.",
)
@click.option(
    "--keep-wrappers",
    is_flag=True,
    help="Keep module., _orig_mod. and other wrapper prefixes in names.",
)
@click.option(
    "--frozen",
    metavar="PATTERN",
    multiple=True,
    help="Parameters missing from SRC's optimizer, if it numbers them (e.g. vision.*). Repeatable.",
)
@order_options
@click.option("--overwrite", is_flag=True, help="Replace DST once the new one is complete.")
@click.option("--no-verify", is_flag=True, help="Do not read the result back.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
def command(*, as_json: bool, **arguments: Any) -> int:
    """Convert checkpoint SRC, optimizer state included, to DST in another FORMAT.

    The target can be for any number of ranks. No framework is needed and pickles are never
    executed. DST appears under its name only after every tensor was read back and matches SRC bit
    for bit; SRC is never modified. Repeating an interrupted command resumes it.

    Exit status: 0 DST was written, 1 without SRC's optimizer state (use --model, --order,
    --frozen or --no-optimizer), 2 SRC cannot be converted as requested, 3 DST cannot be written.
    """
    from holdfast.ckpt.convert.pipeline import convert_checkpoint
    from holdfast.cli.progress import Advance

    request = _build_request(arguments)
    with Advance(sys.stderr) as progress:
        result = convert_checkpoint(request, progress.tell)
    if as_json:
        from holdfast.report.json import envelope, write_json

        write_json(sys.stdout, envelope("ckpt convert", (), None, converted=result))
    else:
        _print_result(result)
    return ERRORS_FOUND if result.optimizer_lost else OK


def _build_request(arguments: dict[str, Any]) -> ConversionRequest:
    from holdfast.ckpt.convert import names, targets
    from holdfast.ckpt.convert.options import ConvertOptions
    from holdfast.ckpt.convert.pipeline import ConversionRequest

    options = ConvertOptions(
        ranks=arguments["ranks"] or 0,
        dtype=arguments["dtype"],
        shard_bytes=_parse_size(arguments["shard_size"]),
        tag=arguments["tag"],
        optimizer=not arguments["no_optimizer"],
        form=arguments["form"] or targets.default_form(arguments["to"]),
        optimizer_key=arguments["optimizer_key"],
    )
    return ConversionRequest(
        source=arguments["source"],
        target=arguments["target"],
        to=targets.parse_format(arguments["to"]),
        options=options,
        maps=tuple(
            name_map for text in arguments["maps"] for name_map in names.parse_name_maps(text)
        ),
        frozen=arguments["frozen"],
        order=read_order(arguments["order"], arguments["model"]),
        keep_wrappers=arguments["keep_wrappers"],
        overwrite=arguments["overwrite"],
        verify=not arguments["no_verify"],
    )


def _parse_size(text: str) -> int:
    """Return the bytes of "5GB" or "500 MiB". Raises InvalidValue."""
    match = _SIZE.fullmatch(text.strip())
    base = 1024 if match and match[3] else 1000
    size = (
        int(float(match[1]) * base ** (_POWERS.index(match[2].lower()) + 1 if match[2] else 0))
        if match
        else 0
    )
    if size < 1:
        raise InvalidValue(
            "--shard-size", why=f"{text!r} is not a size", next_step="use e.g. 5GB or 500MiB"
        )
    return size


def _print_result(result: ConversionResult) -> None:
    from holdfast.ckpt.render.conversion import describe_counts, list_names, render_conversion
    from holdfast.core.text import pluralize

    written = [
        f"{describe_counts(result.tensors, result.states)}, in {pluralize(result.files, 'file')}"
    ]
    if result.resumed:
        written.append("resumed an interrupted conversion")
    compared, losses = "nothing (--no-verify)", list(result.losses)
    if result.proof is not None:
        counts = describe_counts(result.proof.tensors, result.proof.states)
        compared = f"{counts}: bit-identical to the source"
        compared += f" in {result.dtype}" if result.dtype else ""
        compared += f" (plus {result.proof.copies:,} copies)" if result.proof.copies else ""
        losses += [
            f"{count:,} values of {name} are out of range of the target dtype"
            for name, count in result.proof.beyond.items()
        ]
    if result.left_out:
        counts = describe_counts(len(result.left_out), len(result.left_out_states))
        losses.append(f"{counts}: {list_names(result.left_out)}")
    elif result.left_out_states and not result.losses:
        losses.append(f"{pluralize(len(result.left_out_states), 'optimizer tensor')}")
    render_conversion(
        source=(result.source, result.source_format),
        target=(result.target, result.target_format),
        written=written,
        compared=compared,
        losses=losses,
        notes=result.notes,
        elapsed_s=result.elapsed_s,
        size=result.size,
        file=sys.stdout,
    )

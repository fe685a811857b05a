"""``holdfast ckpt convert``: a checkpoint in the format of another framework, nothing lost on the way."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import BadValue

if TYPE_CHECKING:
    from holdfast.actions.conversion.converting import Converted, Wish

_DTYPES = ("float32", "bfloat16", "float16", "float64")
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)
_POWERS = "kmgt"


@click.command()
@click.argument("source", metavar="SRC", type=click.Path(path_type=Path))
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option("--to", metavar="FORMAT", required=True,
              help="safetensors, huggingface, torch, lightning, accelerate, dcp (FSDP), holdfast, zero1, zero2, zero3 "
                   "or universal (DeepSpeed).")  # fmt: skip
@click.option("--ranks", metavar="N", type=click.IntRange(1, 1 << 20),
              help="Data-parallel ranks that a sharded format is written for (those of SRC, or 1).")  # fmt: skip
@click.option("--dtype", type=click.Choice(_DTYPES), help="Of weights, rounded to the nearest (as they are).")
@click.option("--form", metavar="NAME", default="", help="Which of its forms FORMAT is written in (its first).")
@click.option(
    "--shard-size", metavar="SIZE", default="5GB", show_default=True, help="Of a file of safetensors at most."
)
@click.option("--tag", metavar="NAME", default="", help="DeepSpeed's name of the checkpoint (global_stepN).")
@click.option("--no-optimizer", is_flag=True, help="Write the model alone.")
@click.option("--map", "maps", metavar="OLD=NEW", multiple=True,
              help="Rename a tensor, or a module with all that is in it; s/PATTERN/NEW/ is a regular expression, @FILE "
                   "has maps on its lines. May be repeated.")  # fmt: skip
@click.option("--keep-wrappers", is_flag=True,
              help="Leave module., _orig_mod. and what other wrappers put into names.")  # fmt: skip
@click.option("--frozen", metavar="PATTERN", multiple=True,
              help="Parameters that SRC's optimizer does not have, where it numbers them (vision.*).")  # fmt: skip
@click.option("--order", metavar="FILE", type=click.Path(path_type=Path),
              help="Names of the parameters, one a line, as model.named_parameters() gives them: where SRC's optimizer "
                   "counts them, and its weights are in another order (safetensors).")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace DST, once the new one is whole.")
@click.option("--no-verify", is_flag=True, help="Do not read back what was written.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, as_json: bool, **given: Any) -> int:
    """Convert the checkpoint SRC to DST in another FORMAT, for any number of ranks, with the optimizer's state.

    No framework is needed, and no pickle runs. DST gets its name when every tensor was read back and is that of SRC,
    bit by bit; SRC is never touched. What was cut off goes on where it was by the same command.

    Exit status 0 where DST is there, 2 where it cannot be made of SRC as asked, 3 where it cannot be written.
    """
    from holdfast.actions.conversion.converting import convert
    from holdfast.cli.progress import Advance

    wish = _wish(given)
    with Advance(sys.stderr) as progress:
        found = convert(wish, progress.tell)
    if as_json:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("ckpt convert", (), None, converted=found))
    else:
        _print(found)
    return 0


def _wish(given: dict[str, Any]) -> Wish:
    from holdfast.actions.conversion import names, targets
    from holdfast.actions.conversion.converting import Wish
    from holdfast.actions.conversion.options import Options

    options = Options(
        ranks=given["ranks"] or 0, dtype=given["dtype"], shard_bytes=_size(given["shard_size"]), tag=given["tag"],
        optimizer=not given["no_optimizer"], form=given["form"],
    )  # fmt: skip
    return Wish(
        source=given["source"], target=given["target"], to=targets.named(given["to"]), options=options,
        maps=tuple(each for text in given["maps"] for each in names.parsed(text)), frozen=given["frozen"],
        order=names.ordered(given["order"]) if given["order"] else (),
        keep_wrappers=given["keep_wrappers"], overwrite=given["overwrite"], verify=not given["no_verify"],
    )  # fmt: skip


def _size(text: str) -> int:
    """The bytes of "5GB" or "500 MiB". Raises BadValue."""
    match = _SIZE.fullmatch(text.strip())
    base = 1024 if match and match[3] else 1000
    size = int(float(match[1]) * base ** (_POWERS.index(match[2].lower()) + 1 if match[2] else 0)) if match else 0
    if size < 1:
        raise BadValue("--shard-size", why=f"{text!r} is no size", next_step="write 5GB, or 500MiB")
    return size


def _print(found: Converted) -> None:
    from holdfast.report.converted import counted, listed, render_converted
    from holdfast.report.text import plural

    written = [f"{counted(found.tensors, found.states)}, in {plural(found.files, 'file')}"]
    if found.resumed:
        written.append("an earlier conversion that was cut off was gone on with")
    compared, losses = "nothing (--no-verify)", list(found.losses)
    if found.proof is not None:
        compared = f"{counted(found.proof.tensors, found.proof.states)}, each bit that of the source"
        compared += f" in {found.dtype}" if found.dtype else ""
        compared += f" (and {found.proof.copies:,} copies)" if found.proof.copies else ""
        losses += [f"{count:,} numbers of {name} are beyond the dtype" for name, count in found.proof.beyond.items()]
    if found.left_out:
        losses.append(f"{counted(len(found.left_out), len(found.left_out_states))}: {listed(found.left_out)}")
    elif found.left_out_states and not found.losses:
        losses.append(f"{plural(len(found.left_out_states), 'tensor')} of the optimizer")
    render_converted(
        source=(found.source, found.source_format), target=(found.target, found.target_format), written=written,
        compared=compared, losses=losses, notes=found.notes, elapsed_s=found.elapsed_s, size=found.size,
        file=sys.stdout,
    )  # fmt: skip

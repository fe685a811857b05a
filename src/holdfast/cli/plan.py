"""``holdfast plan``: does a run fit, how fast is it, and what would be better?"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import BadValue, MissingFile
from holdfast.plan.setup import Loss, Offload, Optimizer, Recompute, Schedule, Strategy

if TYPE_CHECKING:
    from holdfast.actions.plan.planning import Planned
    from holdfast.actions.plan.wish import Wish
    from holdfast.plan.shortfall import Measured

_DEGREES = ("tensor", "pipeline", "context", "expert", "replicas", "chunks")
_SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "active")
_PRECISIONS = ("auto", "bf16", "fp16", "fp8", "fp32", "bf16-pure")
_FORMATS = ("fsdp2", "deepspeed", "accelerate-fsdp2", "accelerate-deepspeed", "torchtitan")
_USUAL_SEQUENCE = 4096
_SPAN = re.compile(r"(\d{1,7})(?:\.\.|-)(\d{1,7})")
_POINT = re.compile(r"(\d{1,7})\s*:\s*(\d{1,3}(?:\.\d{1,6})?)(%?)")
_COULD_NOT_JUDGE = 3
_COUNT = click.IntRange(1, 1 << 24)


def _values(words: type[StrEnum]) -> list[str]:
    return [each.value for each in words]


def _numbers(text: str) -> tuple[int, ...]:
    """(8, 512) of "8..512", and (8, 16, 64) of "8,16,64". Raises BadValue."""
    span = _SPAN.fullmatch(text.strip())
    parts = span.groups() if span else [part.strip() for part in text[:1000].split(",")]
    found = tuple(int(part) if part.isascii() and part.isdigit() and len(part) < 8 else 0 for part in parts)
    if min(found) < 1 or sorted(set(found)) != list(found):
        raise BadValue("--scale", why=f"{text[:50]!r} is no rising range", next_step="write 8..512, or 8,16,64")
    return found


def _measured(text: str) -> tuple[Measured, Measured]:
    """Two points of "8:0.9,32:0.6" (or "8:90%,32:60%"). Raises BadValue."""
    from holdfast.plan.shortfall import Measured

    found = [_POINT.fullmatch(part.strip()) for part in text[:200].split(",")]
    if len(found) != 2 or found[0] is None or found[1] is None:
        raise BadValue("--measured", why=f"{text[:50]!r} is not two sizes with their efficiency",
                       next_step="write 8:0.9,32:0.6")  # fmt: skip
    one, two = (Measured(int(each[1]), float(each[2]) / (100 if each[3] else 1)) for each in found if each)
    return one, two


@click.command()
@click.argument("model", metavar="[MODEL]", default="")
@click.option("--on", metavar="CLUSTER", help='"16 x A100-80G", "2 x 8 H100 @ 400 Gbit/s", "2 A100 + 2 V100".')
@click.option("--batch", metavar="N", type=_COUNT, help="Sequences a step, of all ranks: exactly so many.")
@click.option("--sequence", metavar="N", type=_COUNT, help="Tokens of a sequence (4096, or all that the model can).")
@click.option("--micro-batch", metavar="N", type=_COUNT, help="Sequences at a time on a rank (default: the best).")
@click.option("--accumulation", metavar="N", type=_COUNT, help="Micro-batches a step on a rank.")
@click.option("--strategy", type=click.Choice(_values(Strategy)), help="What data-parallel ranks share (fsdp2).")
@click.option("--tensor", metavar="N", type=_COUNT, help="Ranks that share each layer's matrices.")
@click.option("--pipeline", metavar="N", type=_COUNT, help="Stages.")
@click.option("--context", metavar="N", type=_COUNT, help="Ranks that share a sequence.")
@click.option("--expert", metavar="N", type=_COUNT, help="Ranks that share the experts.")
@click.option("--replicas", metavar="N", type=_COUNT, help="Copies of the model among data-parallel ranks (HSDP).")
@click.option("--chunks", metavar="N", type=_COUNT, help="Pieces of the model on each pipeline stage.")
@click.option(
    "--schedule", type=click.Choice(_values(Schedule)), help="In which order stages take micro-batches (1f1b)."
)
@click.option(
    "--recompute", type=click.Choice(_values(Recompute)), help="Activations computed again (the least that fits)."
)
@click.option("--optimizer", type=click.Choice(_values(Optimizer)), default=Optimizer.ADAMW.value, show_default=True,
              help="What is kept for each weight.")  # fmt: skip
@click.option("--precision", type=click.Choice(_PRECISIONS), default="auto", show_default=True,
              help="What is multiplied; auto: the 16 bits that all GPUs have.")  # fmt: skip
@click.option(
    "--offload", type=click.Choice(_values(Offload)), default=Offload.NONE.value, help="What the host's memory holds."
)
@click.option(
    "--loss", type=click.Choice(_values(Loss)), default=Loss.EAGER.value, help="How cross-entropy is computed (eager)."
)
@click.option("--no-flash", is_flag=True, help="Attention that stores its scores.")
@click.option("--compiled", is_flag=True, help="torch.compile.")
@click.option("--fused-optimizer", is_flag=True, help="The optimizer's kernel that needs no numbers besides.")
@click.option("--bucket-views", is_flag=True, help="DDP's gradients are views of its buckets.")
@click.option("--no-reshard", is_flag=True, help="Keep gathered weights from forward to backward.")
@click.option("--lora", metavar="RANK[:MATRICES]", default="", help="Train adapters alone: 16, or 16:queries,values.")
@click.option("--quantized", is_flag=True, help="With --lora: frozen weights in 4 bits (QLoRA).")
@click.option("--freeze", type=click.Choice(["vision", "language", "all", "none"]), help="Towers that are not trained.")
@click.option("--layers", metavar="N", type=_COUNT, help="Instead of MODEL: sizes of a model of Llama's form.")
@click.option("--hidden", metavar="N", type=_COUNT, help="Its width.")
@click.option("--heads", metavar="N", type=_COUNT, help="Heads of queries (hidden / 128).")
@click.option("--kv-heads", metavar="N", type=_COUNT, help="Heads of keys and values (as many).")
@click.option("--ffn", metavar="N", type=_COUNT, help="Inner width of the feed-forward part (8/3 of hidden).")
@click.option("--vocab", metavar="N", type=_COUNT, help="Tokens that there are (32000).")
@click.option("--experts", metavar="N", type=_COUNT, help="Experts of a layer (1).")
@click.option("--active", metavar="N", type=_COUNT, help="Experts that see a token (2).")
@click.option("--scale", metavar="FROM..TO", help="Throughput at these numbers of GPUs, why it bends, what would help.")
@click.option("--strong", is_flag=True, help="Of --scale and --measured: the global batch stays, not that of a GPU.")
@click.option("--measured", metavar="N:E,N:E", help="Efficiency that was measured at two sizes: what explains it?")
@click.option("--links", metavar="FILE", type=Path,
              help="What `holdfast bench --save FILE` measured there, instead of tables of links.")  # fmt: skip
@click.option("--simulate", is_flag=True, help="Of FILE.py:FUNCTION: run a step of the module on fake tensors, too.")
@click.option(
    "--failed", metavar="PATH", multiple=True,
    help="Log or snapshot of a run that was out of memory: each change, what it saves and what speed it costs.",
)  # fmt: skip
@click.option("--groups", is_flag=True, help="Process groups: which ranks talk to which, and that they are right.")
@click.option("--write", "folder", metavar="DIR", type=Path,
              help="Write configurations there: DeepSpeed, FSDP2, Accelerate, torchtitan, process groups.")  # fmt: skip
@click.option("--migrate", "config", metavar="FILE", type=Path,
              help="Instead of a plan: carry a DeepSpeed, FSDP2 or Accelerate configuration over.")  # fmt: skip
@click.option("--to", type=click.Choice(_FORMATS), help="With --migrate: into what.")
@click.option("--ranks", metavar="N", type=_COUNT, help="With --migrate: data-parallel ranks of the job.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.option("--html", "html_file", metavar="FILE", type=Path, help="Write a page with pictures there.")
def command(**given: Any) -> int:
    """Plan a run: does it fit, how fast is it, and what would be better? By arithmetic, without a GPU or torch.

    MODEL: a name (llama3.1-70b, llava-1.6-34b), a Hugging Face config.json or a folder with one, FILE.py:FUNCTION of a
    function that builds a module (which needs torch); or sizes by options.

    What is not said is chosen: the fastest that fits. Ends with 0 where it fits (or does so tightly), 1 where it does
    not, 2 where the question cannot be answered as it is put.
    """
    from holdfast.actions.plan.planning import plan

    if given["config"] or given["to"]:
        return _migrate(given)
    if given["html_file"] and not given["html_file"].parent.is_dir():
        raise MissingFile(given["html_file"], why="its folder does not exist", next_step="make the folder first")
    if given["failed"]:
        return _relieve(given)
    planned = plan(_wish(given), _tell)
    _show(planned, given)
    return planned.exit_status


def _tell(what: str) -> None:
    """Say on a terminal what takes seconds."""
    if sys.stderr.isatty():
        click.echo(f"holdfast: {what} …", err=True)


def _wish(given: Mapping[str, Any]) -> Wish:
    """What the options ask for. Raises BadValue, MissingFile and UnknownName."""
    from holdfast.actions.plan import links as plan_links
    from holdfast.actions.plan import model as plan_model
    from holdfast.actions.plan.wish import Wish
    from holdfast.plan.hardware import parse_mixed
    from holdfast.plan.scaling import Growth

    if not given["on"]:
        raise click.UsageError('--on is missing: which GPUs are there? For example: --on "16 x A100-80G"')
    parts, links = parse_mixed(given["on"]), ""
    if given["links"]:
        parts, links = plan_links.measured(parts, given["links"])
    model = plan_model.find(given["model"], {name: given[name] for name in _SIZES if given[name] is not None}, _tell)
    model = plan_model.trained(model, lora=given["lora"], quantized=given["quantized"], freeze=given["freeze"] or "")
    positions = model.main.positions if model.towers else 0
    sequence = min(_USUAL_SEQUENCE, positions or _USUAL_SEQUENCE)
    return Wish(
        model=model, on=" ".join(given["on"].split()), parts=parts, sequence=given["sequence"] or sequence,
        batch=given["batch"], micro_batch=given["micro_batch"], accumulation=given["accumulation"],
        strategy=Strategy(given["strategy"]) if given["strategy"] else None,
        degrees={name: given[name] for name in _DEGREES if given[name] is not None},
        schedule=Schedule(given["schedule"]) if given["schedule"] else None,
        recompute=Recompute(given["recompute"]) if given["recompute"] else None,
        optimizer=Optimizer(given["optimizer"]), precision=given["precision"], offload=Offload(given["offload"]),
        loss=Loss(given["loss"]), flash=not given["no_flash"], compiled=given["compiled"],
        fused_optimizer=given["fused_optimizer"], bucket_views=given["bucket_views"], reshard=not given["no_reshard"],
        simulate=given["simulate"],
        sizes=_numbers(given["scale"]) if given["scale"] else (),
        growth=Growth.STRONG if given["strong"] else Growth.WEAK,
        measured=_measured(given["measured"]) if given["measured"] else None,
        links=links,
    )  # fmt: skip


def _show(planned: Planned, given: Mapping[str, Any]) -> None:
    from holdfast.actions.plan.shown import shown

    files = None
    if given["folder"]:
        from holdfast.actions.plan.files import write as write_files

        files = write_files(planned.wish, planned.run, given["folder"], planned.allotment)
    seen = shown(planned, grouped=given["groups"], pictured=bool(given["html_file"]), files=files)
    if given["html_file"]:
        from holdfast.report.files import write_whole
        from holdfast.report.plan_page import page

        write_whole(given["html_file"], page(seen).encode())
    if given["as_json"]:
        from holdfast.actions.plan.json import document
        from holdfast.report.json import write

        write(sys.stdout, document(planned, files, grouped=given["groups"]))
        return
    from holdfast.report.plan import document as sheet
    from holdfast.report.sheet import draw

    draw(sheet(seen), sys.stdout, None if sys.stdout.isatty() else 100)


def _relieve(given: Mapping[str, Any]) -> int:
    """Say what would have helped a run that was out of memory. Raises BadValue and MissingFile."""
    from holdfast.actions.plan.relief import as_json, document, relieved
    from holdfast.report.sheet import draw

    found = relieved(_wish(given), given["failed"])
    if given["as_json"]:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("plan", [found.why] if found.why else (), None, **as_json(found)))
    else:
        draw(document(found), sys.stdout, None if sys.stdout.isatty() else 100)
    return 1 if found.why is not None else _COULD_NOT_JUDGE


def _migrate(given: Mapping[str, Any]) -> int:
    """Carry a configuration over: its files on standard output, or into a folder. Raises BadValue and MissingFile."""
    from holdfast.actions.plan import files as plan_files
    from holdfast.report.plan_migration import Carried, document, texts
    from holdfast.report.sheet import draw

    if not (given["config"] and given["to"]):
        raise click.UsageError("--migrate and --to belong together: a configuration, and what it is to become")
    found = plan_files.migrated(given["config"], given["to"], given["ranks"] or 0)
    kept = plan_files.keep(found.files, given["folder"]) if given["folder"] else ()
    if given["as_json"]:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("plan", (), None, migration=found, written=kept))
        return 0
    carried = Carried(
        origin=found.origin, to=found.to, lost=tuple((each.what, each.why) for each in found.lost),
        mapped=tuple((each.key, each.value, each.becomes, each.differs) for each in found.mapped),
        warnings=found.warnings, written=bool(kept),
        files=tuple((each.path, each.purpose) for each in kept)
        or tuple((each.name, each.text) for each in found.files),
    )  # fmt: skip
    draw(document(carried), sys.stdout if kept else sys.stderr, None if sys.stdout.isatty() else 100)
    if not kept:
        click.echo(texts(carried.files), nl=False)
    return 0

"""``holdfast bench``: how fast, and how rightly, do the ranks of a job talk to each other?"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.errors import BadValue, MissingFile, UnknownName

if TYPE_CHECKING:
    from holdfast.actions.bench import Benched
    from holdfast.measured import Wish

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "m": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", re.IGNORECASE)


def _size(option: str, text: str) -> int:
    """Bytes of ``8``, ``64K``, ``1.5M`` (as in nccl-tests: of 1,024). Raises BadValue."""
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if not 0 < size < 1 << 46:
        raise BadValue(option, why=f"{text!r} is no size of at least one byte", next_step="write 8, 64K, 32M or 1G")
    return size


def _seconds(option: str, text: str) -> float:
    """Seconds of ``90s``, ``2m``, ``30``. Raises BadValue."""
    match = _TIME.fullmatch(text.strip())
    seconds = float(match[1]) * _TIMES[match[2]] if match else 0.0
    if not 0.1 <= seconds <= 86400:
        raise BadValue(option, why=f"{text!r} is no time between 0.1 s and a day", next_step="write 90s or 2m")
    return seconds


def _share(text: str) -> float:
    """0.1 of ``10%`` and of ``0.1``. Raises BadValue."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 10:
        raise BadValue("--tolerance", why=f"{text!r} is no share", next_step="write 10%")
    return share


def _words(kind: str, given: tuple[str, ...], known: tuple[str, ...], otherwise: tuple[str, ...]) -> tuple[str, ...]:
    """The words of an option that may be repeated, or hold several with commas; ``all`` for all."""
    words = [word.strip().casefold().replace("-", "_") for text in given for word in text.split(",") if word.strip()]
    by_word = {each.replace("-", "_"): each for each in known}
    for word in words:
        if word not in by_word and word != "all":
            raise UnknownName(kind, word, (*known, "all"))
    if "all" in words:
        return known
    return tuple(dict.fromkeys(by_word[word] for word in words)) or otherwise


@click.command()
@click.argument("collectives", metavar="[COLLECTIVE]...", nargs=-1)
@click.option("--nproc-per-node", "ranks", metavar="N", type=click.IntRange(1, 1024), default=2, show_default=True,
              help="Ranks to start on this host; under a launcher its own count.")  # fmt: skip
@click.option("-b", "--min-bytes", metavar="SIZE", default="8", show_default=True, help="Smallest size.")
@click.option("-e", "--max-bytes", metavar="SIZE", default="32M", show_default=True, help="Largest size (K, M, G).")
@click.option("-f", "--factor", type=float, default=4.0, show_default=True, help="What each size grows by.")
@click.option("-i", "--step-bytes", metavar="SIZE", help="Let sizes grow by this many bytes instead.")
@click.option("-n", "--iters", type=click.IntRange(1, 1_000_000), default=20, show_default=True, help="Timed calls.")
@click.option("-w", "--warmup", type=click.IntRange(0, 100_000), default=5, show_default=True, help="Untimed calls.")
@click.option("-d", "--dtype", metavar="TYPE", default="float32", show_default=True, help="float32, bfloat16, int64, …")
@click.option("-o", "--op", metavar="OP", default="sum", show_default=True, help="sum, prod, min, max or avg.")
@click.option("-r", "--root", type=int, default=0, show_default=True, help="Rank that broadcasts and reduces start at.")
@click.option("--check/--no-check", default=True, help="Compare every element with what it has to be (default).")
@click.option("--way", "ways", metavar="WAY", multiple=True,
              help="torch (default), holdfast, pieces, bf16, hierarchy, one-by-one, coalesced, or all.")  # fmt: skip
@click.option("--backend", "backends", metavar="NAME", multiple=True, help="gloo, nccl or both, side by side.")
@click.option("--pairs", is_flag=True, help="Measure each pair of ranks as well.")
@click.option("--limit", "limit", metavar="TIME", default="120s", show_default=True, help="The most a call may take.")
@click.option("--baseline", metavar="FILE", type=Path, help="An earlier measurement (--save) to compare with.")
@click.option("--tolerance", metavar="SHARE", default="10%", show_default=True, help="How much slower is still fine.")
@click.option("--save", "save_file", metavar="FILE", type=Path, help="Keep the measurement there, as a baseline.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
@click.option("--csv", "csv_file", metavar="FILE", type=Path, help="Write a line for each size there.")
@click.option("--html", "html_file", metavar="FILE", type=Path, help="Write a page with plots there.")
def command(**given: Any) -> int:
    """Measure collectives: times, bandwidths and percentiles, and whether every element comes out right.

    COLLECTIVE: all_reduce (default), all_gather, reduce_scatter, broadcast, reduce, all_to_all, sendrecv, or all.

    Alone it starts ranks on this host; under torchrun, srun or holdfast run (torchrun … -m holdfast bench) each process
    is a rank. The tables are those of nccl-tests.
    """
    from holdfast import settings
    from holdfast.actions.bench import bench
    from holdfast.report.bench import Printer
    from holdfast.report.terminal import render_verdict

    wish = _wish(given)
    _see_folders(given)
    printer = Printer(sys.stdout, live=len(wish.ways) == 1, quiet=given["as_json"])
    done = bench(wish, settings.environment(), ranks=given["ranks"], baseline=given["baseline"],
                 tolerance=_share(given["tolerance"]), tell=printer.row)  # fmt: skip
    if not done.speaks:
        return 0
    _write(given, done)
    if not given["as_json"]:
        printer.rest(done.measurement, done.kept)
        render_verdict(done.verdict, file=sys.stdout)
    return done.exit_status


def _wish(given: Mapping[str, Any]) -> Wish:
    """What the options ask for. Raises BadValue and UnknownName."""
    from holdfast.measured import COLLECTIVES, DTYPES, OPS, TORCH, WAYS, Wish

    for kind, name, known in (("dtype", given["dtype"], tuple(DTYPES)), ("operation", given["op"], OPS)):
        if name not in known:
            raise UnknownName(kind, name, known)
    return Wish(
        collectives=_words("collective", given["collectives"], COLLECTIVES, COLLECTIVES[:1]),
        ways=_words("way", given["ways"], tuple(WAYS), (TORCH,)),
        backends=_words("backend", given["backends"], ("gloo", "nccl"), ()),
        min_bytes=_size("--min-bytes", given["min_bytes"]), max_bytes=_size("--max-bytes", given["max_bytes"]),
        step_bytes=_size("--step-bytes", given["step_bytes"]) if given["step_bytes"] else None,
        factor=given["factor"], iters=given["iters"], warmup=given["warmup"], dtype=given["dtype"], op=given["op"],
        root=given["root"], check=given["check"], pairs=given["pairs"], limit_s=_seconds("--limit", given["limit"]),
    )  # fmt: skip


def _see_folders(given: Mapping[str, Any]) -> None:
    """See that files can be written where they are wanted, before time is spent. Raises MissingFile."""
    for name in ("save_file", "csv_file", "html_file"):
        folder = Path(given[name] or ".").parent
        if not folder.is_dir():
            raise MissingFile(given[name], why="its folder does not exist", next_step="make the folder first")


def _write(given: Mapping[str, Any], done: Benched) -> None:
    """The files that are asked for, and the JSON."""
    from holdfast.report.files import write_whole
    from holdfast.report.json import envelope, write

    document = envelope("bench", done.findings, done.verdict, measurement=done.measurement)
    if given["save_file"]:
        write(given["save_file"], document)
    if given["as_json"]:
        write(sys.stdout, document)
    if given["csv_file"]:
        from holdfast.report.bench import as_csv

        write_whole(given["csv_file"], as_csv(done.measurement).encode())
    if given["html_file"]:
        from holdfast.report.bench_page import page

        write_whole(given["html_file"], page(done.measurement, done.verdict).encode())

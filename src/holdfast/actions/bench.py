"""Measures collectives: by ranks of our own on this host, or as one of the ranks that a launcher has started."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from holdfast import links
from holdfast.errors import BadValue
from holdfast.facts import line_rates, measurements
from holdfast.facts.copies import names_of
from holdfast.findings import Finding, Level, Verdict
from holdfast.measured import OPS, WAYS, Host, Measurement, Row, Series, Wish, takes
from holdfast.rules import bandwidth, preflight

QUESTION = "do collectives give right results, and as fast as they should?"
#: A fit is kept from so many bytes on: smaller messages tell nothing of bandwidth.
LEAST_KEPT_BYTES = 1 << 20
_SLURMS = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES")
#: Slurm names no port; this is torchrun's.
_PORT = 29500

Tell = Callable[[Series, Row], None]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """This process's part in a job that a launcher started."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    address: str
    port: int


class Benched(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement, judged. ``kept``: where its fits are now. ``speaks``: this process shows it."""

    measurement: Measurement
    verdict: Verdict
    findings: tuple[Finding, ...]
    kept: Path | None
    speaks: bool = True

    @property
    def exit_status(self) -> int:
        """0 nothing wrong, 1 an error was found."""
        return int(any(claim.level is Level.ERROR for claim in self.findings))


def bench(
    wish: Wish, environ: Mapping[str, str], *, ranks: int, baseline: Path | None = None, tolerance: float = 0.1,
    tell: Tell | None = None,
) -> Benched:  # fmt: skip
    """Measure, keep the fits, and judge. Under a launcher this process is one rank, and the first one speaks.

    Raises:
        BadValue: what is wished for cannot be had, or the baseline is of other machines.
        MissingFile, CollectiveFailed: there is no baseline, or the measurement failed.
    """
    check(wish)
    before = measurements.read(baseline) if baseline is not None else None
    part = part_of(environ)
    if "gloo" in wish.backends or not on_gpus(wish):  # buffers on GPUs take none of the host's memory
        measurements.fits_in_memory(wish, part.local_ranks if part else ranks)
    if part is None:
        if before is not None:
            bandwidth.refuse_unlike(before, wish, ranks)
        carried = line_rates.Carried(ranks, environ) if on_gpus(wish) else None
        host = line_rates.this_host(None, alone=True, carried=carried)
        found = measurements.run(wish, host, ranks, environ, tell)
    else:
        found = _as_rank(wish, part, environ, tell)
    first_of_host = part is None or part.local_rank == 0
    worth = [fit for fit in found.fits if fit.largest_bytes >= LEAST_KEPT_BYTES]
    kept = links.keep(worth) if worth and first_of_host else None
    findings = tuple(bandwidth.judge(found, before, tolerance))
    unseen = tuple(f"{host.name}: {host.line}" for host in found.hosts if host.line_rate is None)
    return Benched(
        measurement=found, verdict=preflight.verdict(findings, unseen, QUESTION), findings=findings, kept=kept,
        speaks=part is None or part.rank == 0,
    )  # fmt: skip


def check(wish: Wish) -> None:
    """See that what is wished for makes sense.

    Raises:
        BadValue: it does not.
    """
    if wish.min_bytes > wish.max_bytes:
        why = f"{wish.min_bytes} is more than --max-bytes, which is {wish.max_bytes}"
        raise BadValue("--min-bytes", why=why, next_step="give the smaller one first")
    if wish.step_bytes is None and wish.factor <= 1:
        raise BadValue("--factor", why=f"sizes do not grow by {wish.factor:g}", next_step="give more than 1")
    for way in wish.ways:
        if not any(takes(each, way, wish.dtype, wish.op) for each in wish.collectives):
            what = f"{', '.join(wish.collectives)} ({wish.dtype}, {wish.op})"
            raise BadValue("--way", why=f"there is no {what} by {way}: {WAYS[way]}", next_step="leave it out")
    if wish.op == "avg" and wish.backends != ("nccl",):
        raise BadValue("--op", why="gloo knows no average", next_step=f"choose from {', '.join(OPS[:-1])}")


def part_of(environ: Mapping[str, str]) -> Part | None:
    """Which rank a launcher has made this process (torchrun, srun, holdfast run); None where it was started by hand.

    Raises:
        BadValue: the launcher's variables contradict each other.
    """
    for names in (("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), _SLURMS):
        numbers = [int(text) if (text := environ.get(name, "")).isdecimal() else None for name in names]
        rank, ranks, local, locals_ = numbers
        if rank is None or ranks is None or (names is _SLURMS and locals_ is None):
            continue
        if names is _SLURMS and locals_:
            locals_ = -(-ranks // locals_)  # from the number of nodes
        slurm = next(iter(names_of(environ.get("SLURM_STEP_NODELIST", ""))), "")
        address, port = environ.get("MASTER_ADDR") or slurm, environ.get("MASTER_PORT", str(_PORT))
        if not address or not port.isdecimal():
            raise BadValue("MASTER_ADDR and MASTER_PORT", why=f"{names[0]} is set, and they name no host and port",
                           next_step="start this with torchrun, or set them")  # fmt: skip
        return Part(rank=rank, ranks=ranks, local_rank=local or 0, local_ranks=locals_ or 1, address=address,
                    port=int(port))  # fmt: skip
    return None


def _as_rank(wish: Wish, part: Part, environ: Mapping[str, str], tell: Tell | None) -> Measurement:
    """Be one of the launcher's ranks."""
    from holdfast.runtime.bench import session  # noqa: PLC0415 - imports torch

    host = _host(wish, part, environ)
    address = f"[{part.address}]" if ":" in part.address else part.address
    reuse = "" if "TORCHELASTIC_USE_AGENT_STORE" in environ else f"tcp://{address}:{part.port}"
    session.join(wish, reuse or "env://", part.rank, part.ranks, part.local_rank)
    found = session.measure(wish, host, tell if part.rank == 0 else None)
    session.leave()
    return found


def on_gpus(wish: Wish) -> bool:
    """Whether data will lie on GPUs: where NCCL is wished for, or nothing is and GPUs are here with their driver."""
    return "nccl" in wish.backends if wish.backends else line_rates.driven()


def _host(wish: Wish, part: Part, environ: Mapping[str, str]) -> Host:
    """This host, looked at by its first rank alone: nobody reads what the others say of it."""
    if part.local_rank:
        return Host(name=socket.gethostname(), line="only the first rank of its host looks at it")
    named = environ.get("NCCL_SOCKET_IFNAME") or environ.get("GLOO_SOCKET_IFNAME") or ""
    return line_rates.this_host(
        (part.address, part.port), alone=part.local_ranks == part.ranks, interface=named.lstrip("^="),
        carried=line_rates.Carried(part.local_ranks, environ) if on_gpus(wish) else None,
    )  # fmt: skip

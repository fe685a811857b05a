"""Measure collectives, with ranks started on this host or as a rank that a launcher started."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from holdfast.core import link_measurements, verdicts
from holdfast.core.errors import InvalidValue
from holdfast.core.exit_status import status_of_findings
from holdfast.core.findings import Finding, Verdict
from holdfast.core.measurements import (
    ALGORITHMS,
    OPS,
    BenchHost,
    BenchRequest,
    BenchRow,
    BenchSeries,
    Measurement,
    supports,
)
from holdfast.host import line_rates
from holdfast.host.processes.launched_copies import host_names
from holdfast.preflight.bench import measurements
from holdfast.preflight.bench import rules as bench_rules

QUESTION = "are collective results correct, and is performance as expected?"
#: Minimum size in bytes for a fit to be saved: smaller messages show no bandwidth.
MIN_SAVED_BYTES = 1 << 20
_SLURM_VARIABLES = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES")
#: Slurm sets no port; this is torchrun's default.
_PORT = 29500

RowCallback = Callable[[BenchSeries, BenchRow], None]


class LaunchedRank(msgspec.Struct, frozen=True, kw_only=True):
    """This process as a rank that a launcher started."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    address: str
    port: int


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement and its findings; ``fits_file``: where fits were saved.

    ``prints``: on rank 0.
    """

    measurement: Measurement
    verdict: Verdict
    findings: tuple[Finding, ...]
    fits_file: Path | None
    prints: bool = True

    @property
    def exit_status(self) -> int:
        """Return 0 OK, 1 errors measurement."""
        return status_of_findings(self.findings)


def run_bench(
    request: BenchRequest,
    environ: Mapping[str, str],
    *,
    ranks: int,
    baseline: Path | None = None,
    tolerance: float = 0.1,
    on_row: RowCallback | None = None,
) -> BenchResult:
    """Measure, save the fits, and judge; under a launcher this process is one rank.

    Raises:
        InvalidValue: the request is not possible, or the baseline is of other machines.
        MissingFile: the baseline does not exist.
        CollectiveFailed: the measurement failed.
    """
    check_request(request)
    before = measurements.read_measurement(baseline) if baseline is not None else None
    launched = launched_rank(environ)
    if "gloo" in request.backends or not on_gpus(request):  # GPU buffers take no host memory
        measurements.check_memory(request, launched.local_ranks if launched else ranks)
    if launched is None:
        if before is not None:
            bench_rules.refuse_unlike(before, request, ranks)
        carried = line_rates.GpuRanks(ranks, environ) if on_gpus(request) else None
        host = line_rates.host_line_rates(None, alone=True, carried=carried)
        measurement = measurements.run_measurement(request, host, ranks, environ, on_row)
    else:
        measurement = _as_rank(request, launched, environ, on_row)
    first_on_host = launched is None or launched.local_rank == 0
    large_fits = [fit for fit in measurement.fits if fit.largest_bytes >= MIN_SAVED_BYTES]
    fits_file = link_measurements.save_fits(large_fits) if large_fits and first_on_host else None
    findings = tuple(bench_rules.judge(measurement, before, tolerance))
    unseen = tuple(
        f"{host.name}: {host.line}" for host in measurement.hosts if host.line_rate is None
    )
    return BenchResult(
        measurement=measurement,
        verdict=verdicts.host_verdict(findings, unseen, QUESTION),
        findings=findings,
        fits_file=fits_file,
        prints=launched is None or launched.rank == 0,
    )


def check_request(request: BenchRequest) -> None:
    """Check the request for contradictions.

    Raises:
        InvalidValue: it has one.
    """
    if request.min_bytes > request.max_bytes:
        why = f"{request.min_bytes} is larger than --max-bytes, {request.max_bytes}"
        raise InvalidValue("--min-bytes", why=why)
    if request.step_bytes is None and request.factor <= 1:
        raise InvalidValue(
            "--factor", why=f"{request.factor:g} does not increase sizes (use more than 1)"
        )
    for algorithm in request.algorithms:
        supported = (
            supports(collective, algorithm, request.dtype, request.op)
            for collective in request.collectives
        )
        if not any(supported):
            what = f"{', '.join(request.collectives)} ({request.dtype}, {request.op})"
            raise InvalidValue(
                "--way", why=f"{algorithm} does not support {what}; it is {ALGORITHMS[algorithm]}"
            )
    if request.op == "avg" and request.backends != ("nccl",):
        raise InvalidValue(
            "--op", why="gloo does not support avg", next_step=f"choose from {', '.join(OPS[:-1])}"
        )


def launched_rank(environ: Mapping[str, str]) -> LaunchedRank | None:
    """Return the rank that torchrun, srun or holdfast run assigned to this process, if any.

    Raises:
        InvalidValue: the launcher's variables contradict each other.
    """
    for names in (("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), _SLURM_VARIABLES):
        numbers = [
            int(text) if (text := environ.get(name, "")).isdecimal() else None for name in names
        ]
        rank, ranks, local, locals_ = numbers
        if rank is None or ranks is None or (names is _SLURM_VARIABLES and locals_ is None):
            continue
        if names is _SLURM_VARIABLES and locals_:
            locals_ = -(-ranks // locals_)  # it holds the number of nodes
        slurm = next(iter(host_names(environ.get("SLURM_STEP_NODELIST", ""))), "")
        address, port = environ.get("MASTER_ADDR") or slurm, environ.get("MASTER_PORT", str(_PORT))
        if not address or not port.isdecimal():
            raise InvalidValue(
                "MASTER_ADDR and MASTER_PORT",
                why=f"{names[0]} is set, but they specify no host and port",
                next_step="start this with torchrun, or set both",
            )
        return LaunchedRank(
            rank=rank,
            ranks=ranks,
            local_rank=local or 0,
            local_ranks=locals_ or 1,
            address=address,
            port=int(port),
        )
    return None


def _as_rank(
    request: BenchRequest,
    launched: LaunchedRank,
    environ: Mapping[str, str],
    on_row: RowCallback | None,
) -> Measurement:
    """Measure as one of the launcher's ranks."""
    from holdfast.preflight.bench.torch_worker import session  # noqa: PLC0415 - imports torch

    host = _host(request, launched, environ)
    address = f"[{launched.address}]" if ":" in launched.address else launched.address
    reuse = "" if "TORCHELASTIC_USE_AGENT_STORE" in environ else f"tcp://{address}:{launched.port}"
    session.join_group(
        request, reuse or "env://", launched.rank, launched.ranks, launched.local_rank
    )
    measurement = session.measure(request, host, on_row if launched.rank == 0 else None)
    session.leave_group()
    return measurement


def on_gpus(request: BenchRequest) -> bool:
    """Return whether buffers are on GPUs: if NCCL is requested, or by default with a GPU driver."""
    return "nccl" in request.backends if request.backends else line_rates.has_gpu_driver()


def _host(request: BenchRequest, launched: LaunchedRank, environ: Mapping[str, str]) -> BenchHost:
    """Return this host's properties, determined by its first rank only."""
    if launched.local_rank:
        return BenchHost(name=socket.gethostname(), line="determined by the host's first rank only")
    interface = environ.get("NCCL_SOCKET_IFNAME") or environ.get("GLOO_SOCKET_IFNAME") or ""
    return line_rates.host_line_rates(
        (launched.address, launched.port),
        alone=launched.local_ranks == launched.ranks,
        interface=interface.lstrip("^="),
        carried=line_rates.GpuRanks(launched.local_ranks, environ) if on_gpus(request) else None,
    )

"""Targets for files in the formats of holdfast, possibly forged, and for launch files."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.core import adjustments, checkpoint_manifest, link_measurements, measurements
from holdfast.core.errors import CheckpointUnreadable, InvalidValue
from holdfast.core.measurements import (
    BenchHost,
    BenchRequest,
    BenchRow,
    BenchSeries,
    IterationTiming,
    LinkPair,
    Measurement,
)
from holdfast.core.measurements.fit import AlphaBetaFit
from holdfast.host.launch_files import scanning
from holdfast.host.launch_files.shell import ShellUnreadable
from holdfast.host.variable_rules import audit
from holdfast.host.variable_rules.context import AuditContext
from holdfast.preflight.bench import rules as bench_rules

#: A folder that is only read, and an anonymous file, which is removed when the process ends.
_FOLDER = Path(__file__).resolve().parent
_FILE = Path(f"/proc/self/fd/{os.memfd_create('file')}")

_TIMING = IterationTiming(
    mean_s=2e-3, min_s=1e-3, p50_s=2e-3, p90_s=3e-3, p99_s=4e-3, max_s=5e-3, calls=20, wrong=0
)
_FIT = AlphaBetaFit(
    collective="all_reduce",
    way="torch",
    backend="gloo",
    dtype="float32",
    ranks=2,
    hosts=1,
    latency_s=1e-5,
    latency_interval_s=(1e-6, 2e-5),
    bandwidth=1e9,
    bandwidth_interval=(5e8, None),
    worst_error=0.1,
)
_SERIES = BenchSeries(
    collective="all_reduce",
    way="torch",
    backend="gloo",
    dtype="float32",
    op="sum",
    root=-1,
    ranks=2,
    rows=(
        BenchRow(size_bytes=8, count=2, in_place=_TIMING),
        BenchRow(size_bytes=1 << 20, count=1 << 18, out_of_place=_TIMING),
    ),
)
MEASUREMENT = Measurement(
    ranks=2,
    series=(_SERIES,),
    fits=(_FIT,),
    pairs=(LinkPair(ranks=(0, 1), latency_s=1e-5, bandwidth=1e9),),
    hosts=(
        BenchHost(
            name="n1",
            processor="EPYC",
            cores=64,
            interface="eth0",
            line_rate=1e9,
            line="10 Gbit/s",
            ranks=(0, 1),
        ),
    ),
)
_MANIFEST = checkpoint_manifest.Manifest(
    step=7,
    files=(checkpoint_manifest.ManifestEntry(path="__0_0.distcp", size=3, xxh3="0" * 32),),
    values={"loss": 0.5},
)
#: A file name for each reader; the first byte of the input selects one.
NAMES = ("job.sh", "Dockerfile", "job.yaml", "job.json", ".deepspeed_env", "train.py", "noname")
LAUNCHERS = (
    (
        b"#SBATCH --export=ALL,NCCL_DEBUG=INFO\nexport NCCL_IB_DISABLE=1 \\\n  GLOO_SOCKET_IFNAME=eth0\n"
        b"NCCL_DEBUG=INFO deepspeed --hostfile hosts train.py\n"
    ),
    b"FROM a\nENV NCCL_DEBUG=INFO NCCL_P2P_DISABLE=1\nRUN export OMP_NUM_THREADS=8 && \\\n  echo a=b\n",
    b"env:\n- name: NCCL_DEBUG\n  value: &a INFO\n- *a\nrun: |\n  export NCCL_IB_HCA=mlx5_0\n",
    b'{"env": {"NCCL_DEBUG": "INFO", "args": ["NCCL_IB_DISABLE=1"]}}',
    b"NCCL_SOCKET_IFNAME=eth0\n# a\nPYTHONPATH='b'\n",
    (
        b"import os, torch\nif __name__ == '__main__':\n    os.environ['OMP_NUM_THREADS'] = str(8)\n"
        b"    torch.distributed.init_process_group('nccl')\n    os.environ.update(MASTER_ADDR='a')\n"
    ),
    b"#!/usr/bin/env bash\nsetenv NCCL_DEBUG INFO\n",
)


def measurement(data: bytes) -> None:
    """Parse a measurement or raise InvalidValue; judge it and compare it as a baseline."""
    with contextlib.suppress(InvalidValue):
        baseline = measurements.parse_measurement(data, "fuzz")
        list(bench_rules.judge(baseline))
        for now in (
            MEASUREMENT,
            replace(MEASUREMENT, hosts=baseline.hosts, ranks=baseline.ranks),
            baseline,
        ):
            with contextlib.suppress(InvalidValue):
                bench_rules.refuse_unlike(baseline, BenchRequest(), 2)
                list(bench_rules.judge(now, baseline))


def link_fits(data: bytes) -> None:
    """Load link fits; an invalid file is ignored as a whole, and a limit from a fit is finite."""
    _FILE.write_bytes(data)
    fits = link_measurements.load_fits(_FILE)
    fit = link_measurements.find_fit(fits, backend="gloo", ranks=2)
    assert fit is None or 0 <= fit.seconds(1 << 20) < float("inf")


def manifests(data: bytes) -> None:
    """Parse a manifest or raise CheckpointUnreadable; it lists only files inside its folder."""
    for content in (data, _resealed(data)):
        with contextlib.suppress(CheckpointUnreadable):
            manifest = checkpoint_manifest.parse_manifest(content, "fuzz")
            assert (
                checkpoint_manifest.parse_manifest(
                    checkpoint_manifest.encode_sealed(manifest), "again"
                ).files
                == manifest.files
            )
            for each in checkpoint_manifest.find_damage(_FOLDER, manifest):
                assert each.why
            for entry in manifest.files:
                path = (_FOLDER / entry.path).resolve()
                assert path.is_relative_to(_FOLDER)


def _resealed(data: bytes) -> bytes:
    """Return the manifest with a valid checksum, as an attacker would write it."""
    try:
        return checkpoint_manifest.encode_sealed(
            msgspec.json.decode(data, type=checkpoint_manifest.Manifest)
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data


def adjustments_file(data: bytes) -> None:
    """Read adjustments or raise InvalidValue; their values are within their bounds."""
    _FILE.write_bytes(data)
    with contextlib.suppress(InvalidValue):
        parsed = adjustments.read_adjustments(_FILE)
        assert adjustments.NO_ADJUSTMENTS.schema == parsed.schema
        assert 0 < parsed.loss_scale <= 1
        assert parsed.micro_batches >= 1
        parsed.skips(3)
        _FILE.write_bytes(adjustments.encode_adjustments(parsed))
        assert adjustments.read_adjustments(_FILE) == parsed


def launchers(data: bytes) -> None:
    """Read any text with each reader, or raise ShellUnreadable; audit the variables."""
    name = NAMES[data[0] % len(NAMES)] if data else NAMES[0]
    text = data[1:].decode(errors="replace")
    read = scanning.reader(name, text.partition("\n")[0])
    if read is not None:
        with contextlib.suppress(ShellUnreadable):
            variables = list(read(text, name))
            assert all(each.line is None or each.line >= 1 for each in variables)
            audit(variables, AuditContext())


TARGETS = {
    "measurement": (measurement, [msgspec.json.encode({"measurement": MEASUREMENT})]),
    "links": (
        link_fits,
        [msgspec.json.encode({"schema": link_measurements.SCHEMA, "fits": [_FIT]})],
    ),
    "manifest": (manifests, [checkpoint_manifest.encode_sealed(_MANIFEST), b"{}"]),
    "adjustments": (
        adjustments_file,
        [
            adjustments.encode_adjustments(
                adjustments.Adjustments(micro_batches=4, skip=(adjustments.StepWindow(3, 9),))
            ),
            json.dumps({"schema": adjustments.SCHEMA, "loss_scale": 0.5}).encode(),
        ],
    ),
    "launch-files": (launchers, [bytes([at]) + text for at, text in enumerate(LAUNCHERS)]),
}

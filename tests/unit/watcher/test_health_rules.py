"""Rules for a host's checks during a job."""

import pytest
from msgspec.structs import replace

from holdfast.core.findings import Level, Unknown
from holdfast.host.checks import CheckContext
from holdfast.host.checks.devices.gpu_health import GpuHealthResult
from holdfast.host.checks.devices.infiniband import InfiniBandResult, Port
from holdfast.host.checks.system.memory import MemoryResult
from holdfast.host.gpus import DriverReport, HostGpu
from holdfast.watcher.rules.host_health import judge

GIB = 1 << 30


def judged(name, now, first=None):
    found = judge({name: now}, {} if first is None else {name: first}, CheckContext(), "a", 5.0)
    assert all(claim.subject.host == "a" and claim.evidence for claim in found)
    return [(claim.cause, claim.level) for claim in found]


@pytest.mark.parametrize(
    ("available", "limit", "used", "expected"),
    [
        (40 * GIB, None, None, False),
        (1 * GIB, None, None, True),
        (1 * GIB, 4 * GIB, 1 * GIB, False),  # a quarter of the cgroup limit
        (40 * GIB, 8 * GIB, 7.9 * GIB, True),
        (40 * GIB, 8 * GIB, Unknown("closed"), False),
        (Unknown("closed"), None, None, False),
    ],
)
def test_low_memory_is_a_warning(available, limit, used, expected):
    used = int(used) if isinstance(used, float | int) else used
    result = MemoryResult(total=64 * GIB, available=available, limit=limit, used=used)
    assert judged("memory", result) == ([("host-oom-killed", Level.WARNING)] if expected else [])


def test_oom_kills_since_the_first_round_are_errors():
    result = MemoryResult(total=64 * GIB, available=40 * GIB, kills=3)
    assert judged("memory", result) == []
    assert judged("memory", result, result) == []
    assert judged("memory", replace(result, kills=4), result) == [("host-oom-killed", Level.ERROR)]


def port(**errors):
    return InfiniBandResult(
        ports=(
            Port(
                device="mlx5_0",
                number=1,
                layer="InfiniBand",
                state="ACTIVE",
                physical="LinkUp",
                rate_gbits=400.0,
                lanes=4,
                gids=(),
                pkeys=(),
                errors=errors,
            ),
        )
    )


def test_a_link_lost_during_the_job_is_reported():
    old = port(link_downed=4)
    assert judged("infiniband", old) == []  # it was a note before the job, so it is not new
    assert judged("infiniband", old, old) == []
    assert judged("infiniband", port(link_downed=5), old) == [("ib-port-degraded", Level.WARNING)]
    assert judged("infiniband", port(VL15_dropped=9), port()) == []
    assert (
        judged("infiniband", port(symbol_error=20), port()) == []
    )  # a working link retries occasionally
    assert judged("infiniband", port(symbol_error=200), port()) == [
        ("ib-port-degraded", Level.WARNING)
    ]


def gpus(*errors):
    devices = tuple(
        HostGpu(
            index=n,
            name="a",
            uuid=f"GPU-{n}",
            bus="",
            memory_bytes=1,
            memory_used_bytes=0,
            nvlink_errors=count,
        )
        for n, count in enumerate(errors)
    )
    return GpuHealthResult(answer=DriverReport(source="NVML", driver="1", cuda="1", gpus=devices))


def test_nvlink_errors_and_a_lost_gpu_are_reported():
    assert judged("gpu-health", gpus(7, 0), gpus(7, 0)) == []
    assert judged("gpu-health", gpus(7, 20), gpus(7, 0)) == [("gpu-link-degraded", Level.WARNING)]
    assert judged("gpu-health", gpus(7), gpus(7, 0)) == [("gpu-fell-off-bus-xid-ecc", Level.ERROR)]
    assert judged("gpu-health", GpuHealthResult(unanswered=Unknown("stuck")), gpus(7)) == []

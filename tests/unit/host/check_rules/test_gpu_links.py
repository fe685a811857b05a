"""Findings about GPU links: inactive NVLinks, and pairs without peer access."""

from holdfast.core.findings import Level, Unknown
from holdfast.host.check_rules import judge_check
from holdfast.host.checks import CHECKS, CheckContext
from holdfast.host.checks.devices.gpu_health import GpuHealthResult
from holdfast.host.gpus import DriverReport, GpuPair, HostGpu, NvLink


def judged(links, pairs=()):
    gpus = tuple(
        HostGpu(
            index=n,
            name="a",
            uuid="",
            bus="",
            memory_bytes=1,
            memory_used_bytes=0,
            throttled=(),
            nvlinks=tuple(map(NvLink, up)) if isinstance(up, tuple) else up,
        )
        for n, up in enumerate(links)
    )
    result = GpuHealthResult(
        answer=DriverReport(source="NVML", driver="1", cuda="1", gpus=gpus, pairs=pairs)
    )
    return judge_check(CHECKS["gpu-health"], result, CheckContext(), "a")


UP = (True,) * 4


def test_all_up():
    assert judged([UP, UP], (GpuPair(0, 1, "NVLink", "OK"),)) == ()


def test_a_link_that_is_down():
    (finding,) = judged([UP, (True, False, True, True)])
    assert (finding.cause, finding.subject.gpu, finding.level) == (
        "gpu-link-degraded",
        1,
        Level.WARNING,
    )
    assert "3 of 4 NVLinks up; down: 1" in finding.message


def test_a_gpu_with_fewer_links_than_the_others():
    (finding,) = judged([UP, UP[:2]])
    assert "GPU 1: 2 NVLinks up, while other GPUs of this host have 4" in finding.message


def test_a_gpu_that_has_lost_all_its_links():
    (finding,) = judged([UP, (False,) * 4, UP])
    assert "GPU 1: 0 NVLinks up, while other GPUs of this host have 4" in finding.message


def test_nvlink_bridges_between_some_pairs_only_are_no_finding():
    assert judged([UP, UP, (False,) * 4, (False,) * 4], (GpuPair(0, 1, "NVLink", "OK"),)) == ()


def test_topology_facts():
    pairs = (GpuPair(0, 1, "PIX", "OK"), GpuPair(0, 2, "SYS", "CNS"), GpuPair(1, 2, "SYS", "CNS"))
    gpus = tuple(
        HostGpu(index=n, name="a", uuid="", bus="", memory_bytes=1, memory_used_bytes=0)
        for n in range(3)
    )
    result = GpuHealthResult(
        answer=DriverReport(source="NVML", driver="1", cuda="1", gpus=gpus, pairs=pairs)
    )
    causes_and_levels = [fact.text for fact in result.facts()]
    assert "GPU 0 to GPU: 1 PIX, 2 SYS (no peer access: CNS)" in causes_and_levels
    assert (
        "GPU 2 to GPU: 0 SYS (no peer access: CNS), 1 SYS (no peer access: CNS)"
        in causes_and_levels
    )


def test_missing_links_and_reports_are_no_finding():
    assert judged([None, None], (GpuPair(0, 1, "SYS", "CNS"),)) == ()
    assert judged([(False,) * 4] * 2) == ()  # without a bridge between them
    assert judged([Unknown("x"), None], Unknown("y")) == ()


def test_pairs_without_peer_access_though_others_have_it():
    pairs = (GpuPair(0, 1, "PIX", "OK"), GpuPair(0, 2, "PIX", "CNS"), GpuPair(1, 2, "SYS", "CNS"))
    (finding,) = judged([None] * 3, pairs)
    assert "GPUs 0 and 2 have no peer-to-peer access" in finding.message


def test_settings_of_all_gpus_are_reported_once():
    gpus = tuple(
        HostGpu(
            index=n,
            name="a",
            uuid="",
            bus="",
            memory_bytes=1,
            memory_used_bytes=0,
            persistence=n == 3,
        )
        for n in range(8)
    )
    result = GpuHealthResult(answer=DriverReport(source="NVML", driver="1", cuda="1", gpus=gpus))
    (finding,) = judge_check(CHECKS["gpu-health"], result, CheckContext(), "a")
    assert finding.message.startswith("persistence mode is off on GPUs 0-2,4-7")

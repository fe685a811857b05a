"""NVLink bandwidth: by switch, by direct links, by bridges, and with incomplete driver reports."""

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.gpus import SWITCH, DriverReport, HostGpu, NvLink
from holdfast.host.gpus import driver as gpu_driver
from holdfast.host.gpus.nvlink import nvlink_rate
from tests.unit.host.gpus import recorded

BUSES = [f"0000:{n}b:00.0" for n in range(8)]


def host(*links):
    """Return a report of GPUs with these NVLinks."""
    return DriverReport(
        source="NVML",
        driver="580",
        cuda="13.0",
        gpus=tuple(
            HostGpu(
                index=n,
                name="a",
                uuid="",
                bus=BUSES[n],
                memory_bytes=1,
                memory_used_bytes=0,
                nvlinks=own,
            )
            for n, own in enumerate(links)
        ),
    )


def links_to(count, remote=SWITCH, rate=25e9):
    return (NvLink(up=True, rate=rate, remote=remote),) * count


def test_with_a_switch_all_links_of_the_slowest_gpu_count():
    hgx = host(*[links_to(18)] * 3, (NvLink(up=False), *links_to(17)), *[links_to(18)] * 4)
    assert nvlink_rate(hgx, range(8)) == (
        425e9,
        "17 NVLinks of 25 GB/s per direction on GPU 3, reported by NVML",
    )
    assert nvlink_rate(hgx, [0, 1])[0] == 450e9


def test_a_slower_link_counts_with_its_speed():
    rate, words = nvlink_rate(host(links_to(4), links_to(3) + links_to(1, rate=12.5e9)), [0, 1])
    assert (rate, words) == (
        87.5e9,
        "4 NVLinks of 12.5 to 25 GB/s per direction on GPU 1, reported by NVML",
    )


def test_only_direct_links_to_participating_gpus_count():
    """Four A100 without a switch: four links per pair."""
    four = host(
        *[
            sum((links_to(4, BUSES[other]) for other in range(4) if other != own), ())
            for own in range(4)
        ]
    )
    assert nvlink_rate(four, range(4))[0] == 300e9
    assert nvlink_rate(four, [1, 3])[0] == 100e9


def test_a_ring_of_direct_links_is_connected():
    ring = host(
        *[links_to(2, BUSES[(own - 1) % 4]) + links_to(2, BUSES[(own + 1) % 4]) for own in range(4)]
    )
    assert nvlink_rate(ring, range(4))[0] == 100e9


@pytest.mark.parametrize("of_others", [None, Unknown("GPU is lost"), (NvLink(up=False),) * 4])
def test_bridges_between_two_of_four_leave_the_rest_to_pcie(of_others):
    bridged = host(links_to(4, BUSES[1]), links_to(4, BUSES[0]), of_others, of_others)
    assert nvlink_rate(bridged, [0, 1])[0] == 100e9
    assert nvlink_rate(bridged, range(4)) == (
        Unknown("NVLink does not connect all participating GPUs"),
        "",
    )
    assert isinstance(nvlink_rate(bridged, [2, 3])[0], Unknown)


def test_two_bridges_do_not_join_four():
    pairs = host(
        links_to(4, BUSES[1]), links_to(4, BUSES[0]), links_to(4, BUSES[3]), links_to(4, BUSES[2])
    )
    assert isinstance(nvlink_rate(pairs, range(4))[0], Unknown)
    assert nvlink_rate(pairs, [2, 3])[0] == 100e9


def test_unreported_speed_is_unknown():
    silent = host(links_to(2, remote="", rate=None), links_to(2, remote="", rate=None))
    assert nvlink_rate(silent, [0, 1])[0] == Unknown(
        "the driver does not report the speed of the NVLinks of GPU 0"
    )
    assert isinstance(nvlink_rate(host(links_to(18)), [0])[0], Unknown)


def test_links_with_unreported_remote_end_count_as_switch_links_as_in_virtual_machines():
    assert nvlink_rate(host(*[links_to(18, remote="")] * 2), [0, 1])[0] == 450e9


def test_from_the_drivers_library_to_the_rate(tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(recorded.library(tmp_path)))
    rate, words = nvlink_rate(gpu_driver.query_driver(), [0, 1])
    assert (rate, words) == (
        16 * 25e9 + 13.281e9,
        "17 NVLinks of 13.28 to 25 GB/s per direction on GPU 1, reported by NVML",
    )

"""What NVLink could carry: by a switch, by wires between GPUs, by bridges, and where the driver says too little."""

import pytest

from holdfast.facts import gpus
from holdfast.facts.gpus import Answer, Gpu, NvLink, nvlink
from holdfast.findings import Unknown
from tests.facts.gpus import recorded

BUSES = [f"0000:{n}b:00.0" for n in range(8)]


def host(*links):
    """GPUs with these NVLinks each."""
    return Answer(source="NVML", driver="580", cuda="13.0", gpus=tuple(
        Gpu(index=n, name="a", uuid="", bus=BUSES[n], memory_bytes=1, memory_used_bytes=0, nvlinks=own)
        for n, own in enumerate(links)
    ))  # fmt: skip


def wires(count, to=gpus.SWITCH, rate=25e9):
    return (NvLink(up=True, rate=rate, to=to),) * count


def test_through_a_switch_all_links_of_the_gpu_with_least_count():
    hgx = host(*[wires(18)] * 3, (NvLink(up=False), *wires(17)), *[wires(18)] * 4)
    assert nvlink.rate(hgx, range(8)) == (425e9, "17 NVLinks of 25 GB/s each way, GPU 3, says NVML")
    assert nvlink.rate(hgx, [0, 1])[0] == 450e9


def test_a_link_that_came_up_slower_counts_as_such():
    rate, words = nvlink.rate(host(wires(4), wires(3) + wires(1, rate=12.5e9)), [0, 1])
    assert (rate, words) == (87.5e9, "4 NVLinks of 12.5 to 25 GB/s each way, GPU 1, says NVML")


def test_of_wires_those_to_the_gpus_that_take_part_count():
    """Four A100 without a switch: four links from each to each."""
    four = host(*[sum((wires(4, BUSES[other]) for other in range(4) if other != own), ()) for own in range(4)])
    assert nvlink.rate(four, range(4))[0] == 300e9
    assert nvlink.rate(four, [1, 3])[0] == 100e9


def test_a_ring_of_wires_is_joined_though_not_each_to_each():
    ring = host(*[wires(2, BUSES[(own - 1) % 4]) + wires(2, BUSES[(own + 1) % 4]) for own in range(4)])
    assert nvlink.rate(ring, range(4))[0] == 100e9


@pytest.mark.parametrize("of_others", [None, Unknown("GPU is lost"), (NvLink(up=False),) * 4])
def test_bridges_between_two_of_four_leave_the_rest_to_pcie(of_others):
    bridged = host(wires(4, BUSES[1]), wires(4, BUSES[0]), of_others, of_others)
    assert nvlink.rate(bridged, [0, 1])[0] == 100e9
    assert nvlink.rate(bridged, range(4)) == (Unknown("no NVLink joins all GPUs that take part"), "")
    assert isinstance(nvlink.rate(bridged, [2, 3])[0], Unknown)


def test_two_bridges_do_not_join_four():
    pairs = host(wires(4, BUSES[1]), wires(4, BUSES[0]), wires(4, BUSES[3]), wires(4, BUSES[2]))
    assert isinstance(nvlink.rate(pairs, range(4))[0], Unknown)
    assert nvlink.rate(pairs, [2, 3])[0] == 100e9


def test_where_the_driver_does_not_tell_it_is_unknown():
    silent = host(wires(2, to="", rate=None), wires(2, to="", rate=None))
    assert nvlink.rate(silent, [0, 1])[0] == Unknown("the driver does not tell how fast the NVLinks of GPU 0 are")
    assert isinstance(nvlink.rate(host(wires(18)), [0])[0], Unknown)


def test_where_links_lead_is_not_told_they_are_taken_for_a_switch_as_in_virtual_machines():
    assert nvlink.rate(host(*[wires(18, to="")] * 2), [0, 1])[0] == 450e9


def test_from_the_drivers_library_to_the_rate(tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(recorded.library(tmp_path)))
    rate, words = nvlink.rate(gpus.ask(), [0, 1])
    assert (rate, words) == (16 * 25e9 + 13.281e9, "17 NVLinks of 13.28 to 25 GB/s each way, GPU 1, says NVML")

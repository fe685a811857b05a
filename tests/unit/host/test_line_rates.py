"""Nominal link rates, from trees of /sys as kernels write them."""

from __future__ import annotations

import socket

import pytest
from msgspec.structs import replace

from holdfast.core.findings import Unknown
from holdfast.host import line_rates
from holdfast.host.gpus import SWITCH, DriverReport, HostGpu, NoDriver, NvLink


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_rate_of_an_interface_is_read_from_the_kernel(tmp_path):
    write(tmp_path, {"class/net/eth0/speed": "10000\n", "class/net/wlan0/speed": "-1\n"})
    assert line_rates.interface_rate("eth0", tmp_path)[0] == 1.25e9
    assert isinstance(line_rates.interface_rate("wlan0", tmp_path)[0], Unknown)
    assert isinstance(line_rates.interface_rate("eth7", tmp_path)[0], Unknown)


def test_an_infiniband_port_has_its_own_rate(tmp_path):
    write(
        tmp_path, {"class/net/ib0/device/infiniband/mlx5_0/ports/1/rate": "200 Gb/sec (4X HDR)\n"}
    )
    assert line_rates.interface_rate("ib0", tmp_path)[0] == 25e9


def test_the_slowest_pcie_link_of_gpus_counts(tmp_path):
    def device(name, kind, vendor, speed, width):
        return {
            f"bus/pci/devices/{name}/{file}": f"{text}\n"
            for file, text in (
                ("class", kind),
                ("vendor", vendor),
                ("device", "0x2330"),
                ("max_link_speed", speed),
                ("max_link_width", width),
            )
        }

    write(tmp_path, device("0000:04:00.0", "0x030200", "0x10de", "32.0 GT/s PCIe", "16"))
    write(tmp_path, device("0000:05:00.0", "0x030200", "0x10de", "16.0 GT/s PCIe", "16"))
    write(tmp_path, device("0000:06:00.0", "0x020000", "0x15b3", "2.5 GT/s PCIe", "1"))
    rate, line = line_rates.pcie_rate(tmp_path)
    assert rate == pytest.approx(31.5e9, rel=1e-3)
    assert "0000:05:00.0" in line
    carried = line_rates.GpuRanks(2, {})
    host = line_rates.host_line_rates(
        None, alone=True, carried=carried, ask=lambda: NoDriver("no driver"), sys_root=tmp_path
    )
    assert (host.line_rate, len(host.devices)) == (rate, 2)
    assert host.line.endswith("0000:05:00.0; no driver")


def gpus_with(links):
    gpu = HostGpu(
        index=0,
        name="a",
        uuid="",
        bus="0000:1b:00.0",
        memory_bytes=1,
        memory_used_bytes=0,
        nvlinks=links,
    )
    return DriverReport(
        source="NVML",
        driver="580",
        cuda="13.0",
        gpus=(gpu, replace(gpu, index=1, bus="0000:2b:00.0")),
    )


def test_gpus_connected_by_nvlink_are_not_limited_by_pcie(tmp_path):
    joined = gpus_with((NvLink(up=True, rate=25e9, remote=SWITCH),) * 18)
    host = line_rates.host_line_rates(
        None, alone=True, carried=line_rates.GpuRanks(2, {}), ask=lambda: joined, sys_root=tmp_path
    )
    assert (host.line_rate, host.line) == (
        450e9,
        "18 NVLinks of 25 GB/s per direction on GPU 0, reported by NVML",
    )


def test_ranks_use_their_visible_gpus(tmp_path):
    """Of two ranks, the second one has no GPU to communicate with."""
    joined = gpus_with((NvLink(up=True, rate=25e9, remote=SWITCH),) * 18)
    rate, _ = line_rates.gpu_rate(
        line_rates.GpuRanks(2, {"CUDA_VISIBLE_DEVICES": "1"}), joined, tmp_path
    )
    assert rate == Unknown("no GPU reports the speed of its PCIe link")


def test_host_memory_transfers_do_not_query_the_gpu_driver(tmp_path):
    def never():
        raise AssertionError

    host = line_rates.host_line_rates(None, alone=True, ask=never, sys_root=tmp_path)
    assert host.line.startswith("measured memory copy")


def test_gpus_without_a_driver_have_no_link(tmp_path):
    assert not line_rates.has_gpu_driver(tmp_path)
    write(
        tmp_path,
        {
            f"sys/bus/pci/devices/0000:04:00.0/{file}": f"{text}\n"
            for file, text in (("class", "0x030200"), ("vendor", "0x10de"), ("device", "0x2330"))
        },
    )
    assert not line_rates.has_gpu_driver(tmp_path)
    write(tmp_path, {"dev/nvidiactl": ""})
    assert line_rates.has_gpu_driver(tmp_path)


def test_on_one_host_memory_bandwidth_is_measured_as_the_limit(tmp_path):
    host = line_rates.host_line_rates(None, alone=True, sys_root=tmp_path)
    assert 1e8 < host.line_rate < 1e13
    assert "measured" in host.line
    assert host.cores >= 1


def test_between_hosts_the_interface_is_that_of_the_route(tmp_path):
    write(tmp_path, {"class/net/lo/speed": "-1\n", "class/net/eth9/speed": "25000\n"})
    assert line_rates.interface_to(("127.0.0.1", 29500)) == "lo"
    assert (
        line_rates.host_line_rates(("127.0.0.1", 29500), alone=False, sys_root=tmp_path).line_rate
        is None
    )
    named = line_rates.host_line_rates(
        ("127.0.0.1", 29500), alone=False, interface="eth9", sys_root=tmp_path
    )
    assert (named.interface, named.line_rate) == ("eth9", 3.125e9)


def test_a_host_without_a_route_is_unknown_and_not_fast(tmp_path):
    host = line_rates.host_line_rates(("name.invalid", 29500), alone=False, sys_root=tmp_path)
    assert (host.name, host.line_rate, host.line) == (
        socket.gethostname(),
        None,
        "network interface not known",
    )

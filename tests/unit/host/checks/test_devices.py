"""Results for recorded hosts with adapters, bridges and AMD GPUs, and for kernel logs."""

import time
from datetime import UTC, datetime

import msgspec
import pytest

from holdfast.core.findings import Unknown
from holdfast.host import pci
from holdfast.host.checks import CHECKS, CheckContext
from tests.unit.host.checks.devices import ROOT_PORT, bridge, device, port, roce, write


def result(name, root, **environ):
    found = CHECKS[name].run(CheckContext(root=str(root), environ=environ))
    assert msgspec.json.decode(msgspec.json.encode(found), type=CHECKS[name].result_type) == found
    assert found.facts()
    return found


def ago(hours):
    return (
        datetime.fromtimestamp(time.time() - 3600 * hours, UTC)
        .isoformat(timespec="microseconds")
        .replace(".", ",")
    )


def test_a_port(tmp_path):
    port(tmp_path, counters__symbol_error="12")
    (one,) = result("infiniband", tmp_path).ports
    assert (one.name, one.state, one.physical, one.rate_gbits, one.lanes) == (
        "mlx5_0:1",
        "ACTIVE",
        "LinkUp",
        400,
        4,
    )
    assert (one.pkeys, one.errors) == ((0xFFFF, 0), {"symbol_error": 12})
    assert [gid.index for gid in one.gids] == [0]


def test_a_roce_port(tmp_path):
    roce(tmp_path, mtu=1500)
    (one,) = result("infiniband", tmp_path).ports
    assert [(gid.index, gid.kind, gid.is_ipv4) for gid in one.gids] == [
        (0, "IB/RoCE v1", False),
        (1, "RoCE v2", False),
        (2, "IB/RoCE v1", True),
        (3, "RoCE v2", True),
    ]
    assert (one.mtu, one.layer) == (1500, "Ethernet")


def test_a_port_with_invalid_files(tmp_path):
    port(tmp_path, rate="?", state="", pkeys__0="x", counters__symbol_error="-")
    (one,) = result("infiniband", tmp_path).ports
    assert (one.rate_gbits, one.state, one.pkeys, one.errors) == (None, "", (0, 0), {})


@pytest.mark.parametrize(
    "name", ["infiniband", "pci-paths", "amd-gpus", "cuda", "gpus", "gpu-health"]
)
def test_missing_devices(tmp_path, name):
    assert result(name, tmp_path).absent


def test_acs_after_other_capabilities(tmp_path):
    bridge(tmp_path, ROOT_PORT, control=0x1D)
    bridge(tmp_path, "0000:00:02.0", control=0x01)  # source validation alone redirects nothing
    bridge(tmp_path, "0000:00:03.0")
    assert pci.redirecting_bridges(str(tmp_path)) == (ROOT_PORT,)


def test_acs_needs_root(tmp_path):
    bridge(tmp_path, ROOT_PORT, control=0x1D, size=64)
    assert pci.redirecting_bridges(str(tmp_path)) == Unknown(
        "only root may read the configuration of PCI bridges (ACS)"
    )


def test_a_cyclic_capability_list_ends(tmp_path):
    config = bytearray(4096)
    config[0x100:0x104] = ((0x100 << 20) | 1).to_bytes(4, "little")
    device(tmp_path, ROOT_PORT, 0x8086, 0x060400, config=bytes(config))
    assert pci.redirecting_bridges(str(tmp_path)) == ()


def test_a_gpu_below_two_bridges(tmp_path):
    above = (ROOT_PORT, "0000:01:00.0")
    device(
        tmp_path,
        "0000:1b:00.0",
        pci.NVIDIA,
        0x030200,
        above=above,
        driver="nvidia",
        group="DMA-FQ",
        current_link_width="16",
        max_link_width="16",
        current_link_speed="2.5 GT/s PCIe",
    )
    (one,) = result("pci-paths", tmp_path).devices
    assert (one.bridges, one.driver, one.width, one.node) == (above, "nvidia", 16, None)
    assert result("pci-paths", tmp_path).iommu[0].mode == "DMA-FQ"


def test_an_amd_gpu(tmp_path):
    card = device(
        tmp_path,
        "0000:c1:00.0",
        pci.AMD,
        0x120000,
        driver="amdgpu",
        mem_info_vram_total=str(192 << 30),
        mem_info_vram_used="1024",
    )
    write(
        card,
        {
            "hwmon/hwmon3/temp2_input": "47000",
            "hwmon/hwmon3/temp2_crit": "100000",
            "hwmon/hwmon3/power1_cap": "750000000",
            "ras/umc_err_count": "ue: 1\nce: 9",
            "ras/gfx_err_count": "ue: 0\nce: 0",
        },
    )
    write(tmp_path, {"dev/kfd": ""})
    found = result("amd-gpus", tmp_path, HIP_VISIBLE_DEVICES="0,1,-1")
    (one,) = found.gpus
    assert (one.memory_bytes, one.temperature_c, one.critical_c, one.power_cap_w, one.errors) == (
        192 << 30,
        47,
        100,
        750,
        1,
    )
    assert (found.visible, found.openable) == ((("HIP_VISIBLE_DEVICES", 2),), True)


LOG = """{old} NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
{new} NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
{new} NVRM: GPU at PCI:0000:3b:00: GPU-4fe1
{new} NVRM: Xid (PCI:0000:86:00): 31, pid=4242, name=python, Ch 00000008, intr 00000000. MMU Fault
{new} mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN
{new} mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE
{new} pcieport 0000:00:01.0: AER: Corrected error message received from 0000:3b:00.0
{new} nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer
{new} amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!
{new} eth0: renamed
"""


def test_a_kernel_log(tmp_path):
    write(tmp_path, {"dmesg.txt": LOG.format(old=ago(30), new=ago(2))})
    found = result("kernel-log", tmp_path)
    events = [(event.kind, event.device, event.number, event.count) for event in found.events]
    assert events == [
        ("xid", "0000:3b:00.0", 79, 2),
        ("xid", "0000:86:00.0", 31, 1),
        ("link-down", "0000:ab:00.0", None, 1),
        ("aer", "0000:3b:00.0", None, 1),
        ("amdgpu", "0000:c1:00.0", None, 1),
    ]
    assert all(7000 < event.age_s < 7300 for event in found.events)
    assert found.lines == 11


def test_a_log_without_times_and_with_bytes_of_all_kinds(tmp_path):
    line = b"\xff\xfe [ 12.3] NVRM: Xid (PCI:0000:3b:00): 48, pid=1 " + b"x" * 5000 + b"\n"
    (tmp_path / "dmesg.txt").write_bytes(line * 3)
    (event,) = result("kernel-log", tmp_path).events
    assert (event.number, event.count, event.age_s, len(event.text)) == (48, 3, None, 300)


def test_a_gpu_that_falls_off_while_its_driver_is_loaded_has_no_xid(tmp_path):
    # Lines of the driver, from NVIDIA/NVSentinel#155.
    text = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "NVRM: fallen off the bus and is not responding to commands."
    )
    write(tmp_path, {"dmesg.txt": text})
    assert [(event.kind, event.device) for event in result("kernel-log", tmp_path).events] == [
        ("lost", "")
    ]


def test_an_unreadable_log(tmp_path):
    found = result("kernel-log", tmp_path)
    assert isinstance(found.events, Unknown)


def test_versions_of_a_host(tmp_path):
    device(tmp_path, "0000:1b:00.0", pci.NVIDIA, 0x030200, driver="nvidia")
    write(
        tmp_path,
        {
            "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5",
            "usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15": "",
            "usr/lib/x86_64-linux-gnu/libcuda.so.1": "",
            "opt/site-packages/torch/version.py": "__version__ = '2.9.0+cu130'\ncuda: Optional[str] = '13.0'\nhip = None",
            "opt/site-packages/torch-2.9.0.dist-info/METADATA": "Name: torch\nRequires-Dist: nvidia-nccl-cu13==2.27.7; platform_system == 'Linux'",
            "opt/site-packages/nvidia_nccl_cu13-2.26.2.dist-info/METADATA": "",
        },
    )
    found = result("cuda", tmp_path)
    assert (found.nvidia, found.torch, found.cuda, found.module) == (
        1,
        "2.9.0+cu130",
        "13.0",
        "550.54.15",
    )
    assert (found.library, found.nccl, found.nccl_required) == (
        ("550.54.15",),
        ("13", "2.26.2"),
        ("13", "2.27.7"),
    )

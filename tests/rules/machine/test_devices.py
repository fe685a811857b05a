"""Which findings follow from what is seen of adapters, bridges, versions and the kernel's log."""

import pytest

from holdfast.facts import pci
from holdfast.facts.checks import CHECKS, Place
from holdfast.facts.checks.cuda import Cuda
from holdfast.findings import Level
from holdfast.rules.machine import judge
from tests.facts.checks.devices import ROOT_PORT, bridge, device, port, roce, write
from tests.facts.checks.test_devices import LOG, ago


def judged(name, root, workers=None, **environ):
    place = Place(root=str(root), environ=environ, workers=workers)
    found = judge(CHECKS[name], CHECKS[name].look(place), place, "a")
    assert all(claim.evidence for claim in found)
    return found


def told(found):
    return [(claim.cause, claim.level) for claim in found]


def test_healthy_ports(tmp_path):
    for number in range(8):
        port(tmp_path, f"mlx5_{number}")
    port(tmp_path, "mlx5_8", state="1: DOWN", phys_state="3: Disabled")  # nobody plugged it in
    assert judged("infiniband", tmp_path, NCCL_IB_HCA="mlx5") == ()


@pytest.mark.parametrize(
    ("files", "cause", "level", "words"),
    [
        ({"state": "2: INIT", "sm_lid": "0x0"}, "ib-port-degraded", Level.WARNING, "no subnet manager"),
        ({"state": "1: DOWN"}, "ib-port-degraded", Level.WARNING, "mlx5_1:1 is DOWN; NCCL leaves it out"),
        ({"rate": "100 Gb/sec (1X NDR)"}, "ib-port-degraded", Level.WARNING, "1 of 4 lanes"),
        (
            {"rate": "200 Gb/sec (4X HDR)"},
            "ib-port-degraded",
            Level.NOTE,
            "200 Gbit/s, other ports of this host at 400",
        ),
        ({"counters__link_downed": "3"}, "ib-port-degraded", Level.NOTE, "link_downed 3"),
        ({"pkeys__0": "0x7fff"}, "ib-error", Level.WARNING, "limited member of partition 0x7fff"),
        ({"pkeys__0": "0x0000"}, "ib-error", Level.ERROR, "no partition at index 0"),
    ],
)
def test_a_port_that_is_not_well(tmp_path, files, cause, level, words):
    port(tmp_path)
    port(tmp_path, "mlx5_1", **files)
    (found,) = judged("infiniband", tmp_path)
    assert (found.cause, found.level) == (cause, level)
    assert words in found.message
    assert judged("infiniband", tmp_path, NCCL_IB_HCA="=mlx5_0") == ()  # nobody asked for that port
    assert judged("infiniband", tmp_path, NCCL_IB_HCA="^mlx5_1:1") == ()


def test_no_port_at_all_is_active(tmp_path):
    port(tmp_path, state="1: DOWN", phys_state="2: Polling")
    (found,) = judged("infiniband", tmp_path)
    assert "and has no other" in found.message


def test_a_name_that_fits_no_adapter(tmp_path):
    port(tmp_path)
    (found,) = judged("infiniband", tmp_path, NCCL_IB_HCA="mlx4")
    assert (found.cause, found.level) == ("ib-error", Level.ERROR)
    assert judged("infiniband", tmp_path, NCCL_IB_HCA="mlx4", NCCL_IB_DISABLE="1") == ()


def test_a_container_without_the_devices(tmp_path):
    port(tmp_path)
    (tmp_path / "dev/infiniband/uverbs0").unlink()
    (found,) = judged("infiniband", tmp_path)
    assert "/dev/infiniband" in found.message


@pytest.mark.parametrize(("index", "right"), [("3", True), ("1", True), ("2", False), ("0", False), ("9", False)])
def test_the_index_of_a_roce_address(tmp_path, index, right):
    roce(tmp_path)
    found = judged("infiniband", tmp_path, NCCL_IB_GID_INDEX=index)
    assert told(found) == ([] if right else [("ib-error", Level.ERROR)])
    assert right or "RoCE v2 is at 1, 3" in found[0].message


@pytest.mark.parametrize("index", ["", "²", "-1", "9" * 5000])
def test_an_index_that_is_no_number_is_left_to_the_audit_of_variables(tmp_path, index):
    roce(tmp_path)
    assert judged("infiniband", tmp_path, NCCL_IB_GID_INDEX=index, NCCL_IB_PKEY=index) == ()


def test_an_index_that_is_wrong_on_all_ports_is_said_once(tmp_path):
    for name in ("mlx5_0", "mlx5_1"):
        roce(tmp_path, name)
    (found,) = judged("infiniband", tmp_path, NCCL_IB_GID_INDEX="0")
    assert "on mlx5_0:1, mlx5_1:1; RoCE v2 is at 1, 3" in found.message


def test_roce_with_small_packets_and_without_an_address(tmp_path):
    roce(tmp_path, mtu=1500)
    assert told(judged("infiniband", tmp_path)) == [("ib-port-degraded", Level.NOTE)]
    for at in (1, 3):
        (tmp_path / f"sys/class/infiniband/mlx5_0/ports/1/gids/{at}").write_text("::")
    assert told(judged("infiniband", tmp_path))[0] == ("ib-error", Level.WARNING)


def gpus(root, *, number=2, group="identity", control=0x00):
    bridge(root, ROOT_PORT, control=control)
    for at in range(number):
        device(root, f"0000:{at}b:00.0", pci.NVIDIA, 0x030200, above=(ROOT_PORT,), driver="nvidia", group=group)


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ({}, ""),
        ({"group": "DMA-FQ"}, "the IOMMU translates the addresses of 2 GPUs"),
        ({"control": 0x1D}, f"ACS on 1 PCI bridges above GPUs ({ROOT_PORT})"),
        ({"group": "DMA", "number": 1}, ""),  # it has nobody to talk to
    ],
)
def test_the_way_between_gpus(tmp_path, host, words):
    gpus(tmp_path, **host)
    found = judged("pci-paths", tmp_path)
    assert told(found) == ([("iommu-acs-p2p-hang", Level.WARNING)] if words else [])
    assert not found or words in found[0].message


def test_a_virtual_machine_is_judged_from_outside(tmp_path):
    gpus(tmp_path, group="DMA", control=0x1D)
    write(tmp_path, {"proc/cpuinfo": "flags : fpu vme hypervisor lahf_lm"})
    assert judged("pci-paths", tmp_path) == ()


def test_an_adapter_in_a_narrow_slot(tmp_path):
    device(tmp_path, "0000:ab:00.0", pci.MELLANOX, 0x020700, current_link_width="8", max_link_width="16")
    assert told(judged("pci-paths", tmp_path)) == [("ib-port-degraded", Level.WARNING)]


@pytest.mark.parametrize(
    ("host", "cause", "level", "words"),
    [
        ({}, None, None, ""),
        ({"module": "570.86.10"}, "cuda-driver-mismatch", Level.ERROR, "needs driver 580.65.6 or newer, and 570.86.10"),
        ({"module": "570.86.10", "forward": True}, "cuda-driver-mismatch", Level.WARNING, "compat"),
        ({"cuda": "12.8", "module": "535.183.01"}, None, None, ""),  # the same major version suffices
        ({"cuda": None}, "cuda-driver-mismatch", Level.ERROR, "built for the CPU alone"),
        ({"cuda": None, "rocm": "6.4"}, "cuda-driver-mismatch", Level.ERROR, "built for ROCm 6.4"),
        ({"library": ("575.51.02",)}, "cuda-driver-mismatch", Level.ERROR, "until a reboot"),
        ({"nccl": ("13", "2.26.2")}, "nccl-version-mismatch", Level.WARNING, "2.26.2"),
        ({"nccl": ("12", "2.28.3")}, "nccl-version-mismatch", Level.WARNING, "CUDA 12"),
        ({"nccl": ("13", "2.29.1")}, "nccl-version-mismatch", Level.NOTE, "2.29.1"),
        ({"nvidia": 0, "amd": 8, "module": None}, "cuda-driver-mismatch", Level.WARNING, "not built for ROCm"),
        ({"torch": None, "cuda": None}, None, None, ""),
    ],
)
def test_versions(host, cause, level, words):
    well = {"nvidia": 8, "torch": "2.9.0", "cuda": "13.0", "module": "580.95.05", "nccl": ("13", "2.28.3"),
            "nccl_wanted": ("13", "2.28.3")}  # fmt: skip
    seen = Cuda(**well | {"library": (host.get("module") or "580.95.05",)} | host)
    found = judge(CHECKS["cuda"], seen, Place(), "a")
    assert told(found) == ([(cause, level)] if cause else [])
    assert not found or words in found[0].message


def test_the_kernel_log(tmp_path):
    write(tmp_path, {"dmesg.txt": LOG.format(old=ago(30), new=ago(2))})
    found = judged("kernel-log", tmp_path)
    assert told(found) == [
        ("gpu-fell-off-bus-xid-ecc", Level.ERROR),  # and not Xid 31, which is a program's; one lost link is none
        ("gpu-link-degraded", Level.WARNING),
        ("gpu-hw-fault", Level.WARNING),
    ]
    assert "Xid 79 of the GPU 0000:3b:00.0 2 hours ago" in found[0].message


@pytest.mark.parametrize(
    ("line", "hours", "expected"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off", 50, ("gpu-fell-off-bus-xid-ecc", Level.WARNING)),
        ("NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked", 1, ("gpu-memory-worn", Level.WARNING)),
        ("NVRM: Xid (PCI:0000:3b:00): 64, Row Remapper: failed", 1, ("gpu-memory-worn", Level.ERROR)),
        ("NVRM: Xid (PCI:0000:3b:00): 45, Ch 00000010", 1, None),
        ("NVRM: fallen off the bus and is not responding to commands.", 1, ("gpu-fell-off-bus-xid-ecc", Level.ERROR)),
        ("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30", 1, ("gpu-link-degraded", Level.WARNING)),
        ("mlx5_core 0000:ab:00.0: poll_health:801:(pid 0): device's health compromised - reached miss count", 1,
         ("ib-port-degraded", Level.ERROR)),
    ],
)  # fmt: skip
def test_one_line(tmp_path, line, hours, expected):
    write(tmp_path, {"dmesg.txt": f"{ago(hours)} {line}"})
    assert told(judged("kernel-log", tmp_path)) == ([expected] if expected else [])


def test_a_link_that_flaps(tmp_path):
    write(tmp_path, {"dmesg.txt": f"{ago(1)} mlx5_core 0000:ab:00.0 ibp171s0: Link down\n" * 3})
    assert told(judged("kernel-log", tmp_path)) == [("ib-port-degraded", Level.WARNING)]


def test_amd_gpus(tmp_path):
    card = device(
        tmp_path, "0000:c1:00.0", pci.AMD, 0x120000, driver="amdgpu", current_link_width="8", max_link_width="16"
    )
    write(card, {"hwmon/hwmon3/temp2_input": "97000", "hwmon/hwmon3/temp2_crit": "100000",
                 "hwmon/hwmon3/power1_cap": "500000000", "hwmon/hwmon3/power1_cap_default": "750000000",
                 "ras/umc_err_count": "ue: 1"})  # fmt: skip
    found = judged("amd-gpus", tmp_path, workers=8)
    assert [claim.cause for claim in found] == [
        "cuda-driver-mismatch", "invalid-device-ordinal", "gpu-hw-fault", "gpu-throttled", "gpu-settings",
        "gpu-link-degraded",
    ]  # fmt: skip
    assert "no /dev/kfd" in found[0].message

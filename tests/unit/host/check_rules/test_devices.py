"""Findings about adapters, PCI bridges, versions and the kernel log."""

import pytest

from holdfast.core.findings import Level
from holdfast.host import pci
from holdfast.host.check_rules import judge_check
from holdfast.host.checks import CHECKS, CheckContext
from holdfast.host.checks.devices.cuda import CudaResult
from tests.unit.host.checks.devices import ROOT_PORT, bridge, device, port, roce, write
from tests.unit.host.checks.test_devices import LOG, ago


def judged(name, root, workers=None, **environ):
    context = CheckContext(root=str(root), environ=environ, workers=workers)
    findings = judge_check(CHECKS[name], CHECKS[name].run(context), context, "a")
    assert all(finding.evidence for finding in findings)
    return findings


def causes_and_levels(findings):
    return [(finding.cause, finding.level) for finding in findings]


def test_healthy_ports(tmp_path):
    for number in range(8):
        port(tmp_path, f"mlx5_{number}")
    port(tmp_path, "mlx5_8", state="1: DOWN", phys_state="3: Disabled")  # not plugged in
    assert judged("infiniband", tmp_path, NCCL_IB_HCA="mlx5") == ()


@pytest.mark.parametrize(
    ("files", "cause", "level", "message_part"),
    [
        (
            {"state": "2: INIT", "sm_lid": "0x0"},
            "ib-port-degraded",
            Level.WARNING,
            "no subnet manager",
        ),
        (
            {"state": "1: DOWN"},
            "ib-port-degraded",
            Level.WARNING,
            "mlx5_1:1 is DOWN; NCCL will not use it",
        ),
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
def test_faulty_port(tmp_path, files, cause, level, message_part):
    port(tmp_path)
    port(tmp_path, "mlx5_1", **files)
    (finding,) = judged("infiniband", tmp_path)
    assert (finding.cause, finding.level) == (cause, level)
    assert message_part in finding.message
    assert (
        judged("infiniband", tmp_path, NCCL_IB_HCA="=mlx5_0") == ()
    )  # the variable excludes that port
    assert judged("infiniband", tmp_path, NCCL_IB_HCA="^mlx5_1:1") == ()


def test_no_port_at_all_is_active(tmp_path):
    port(tmp_path, state="1: DOWN", phys_state="2: Polling")
    (finding,) = judged("infiniband", tmp_path)
    assert "and no other port is active" in finding.message


def test_hca_name_without_a_matching_adapter(tmp_path):
    port(tmp_path)
    (finding,) = judged("infiniband", tmp_path, NCCL_IB_HCA="mlx4")
    assert (finding.cause, finding.level) == ("ib-error", Level.ERROR)
    assert judged("infiniband", tmp_path, NCCL_IB_HCA="mlx4", NCCL_IB_DISABLE="1") == ()


def test_a_container_without_the_devices(tmp_path):
    port(tmp_path)
    (tmp_path / "dev/infiniband/uverbs0").unlink()
    (finding,) = judged("infiniband", tmp_path)
    assert "/dev/infiniband" in finding.message


@pytest.mark.parametrize(
    ("index", "right"), [("3", True), ("1", True), ("2", False), ("0", False), ("9", False)]
)
def test_roce_gid_index(tmp_path, index, right):
    roce(tmp_path)
    findings = judged("infiniband", tmp_path, NCCL_IB_GID_INDEX=index)
    assert causes_and_levels(findings) == ([] if right else [("ib-error", Level.ERROR)])
    assert right or "RoCE v2 is at index 1, 3" in findings[0].message


@pytest.mark.parametrize("index", ["", "²", "-1", "9" * 5000])
def test_non_numeric_index_is_left_to_the_variable_audit(tmp_path, index):
    roce(tmp_path)
    assert judged("infiniband", tmp_path, NCCL_IB_GID_INDEX=index, NCCL_IB_PKEY=index) == ()


def test_index_wrong_on_all_ports_is_reported_once(tmp_path):
    for name in ("mlx5_0", "mlx5_1"):
        roce(tmp_path, name)
    (finding,) = judged("infiniband", tmp_path, NCCL_IB_GID_INDEX="0")
    assert "on mlx5_0:1, mlx5_1:1; RoCE v2 is at index 1, 3" in finding.message


def test_roce_with_small_mtu_and_without_an_address(tmp_path):
    roce(tmp_path, mtu=1500)
    assert causes_and_levels(judged("infiniband", tmp_path)) == [("ib-port-degraded", Level.NOTE)]
    for at in (1, 3):
        (tmp_path / f"sys/class/infiniband/mlx5_0/ports/1/gids/{at}").write_text("::")
    assert causes_and_levels(judged("infiniband", tmp_path))[0] == ("ib-error", Level.WARNING)


def gpus(root, *, number=2, group="identity", control=0x00):
    bridge(root, ROOT_PORT, control=control)
    for at in range(number):
        device(
            root,
            f"0000:{at}b:00.0",
            pci.NVIDIA,
            0x030200,
            above=(ROOT_PORT,),
            driver="nvidia",
            group=group,
        )


@pytest.mark.parametrize(
    ("host", "message_part"),
    [
        ({}, ""),
        ({"group": "DMA-FQ"}, "the IOMMU translates addresses of 2 GPUs"),
        ({"control": 0x1D}, f"ACS on PCI bridges above GPUs ({ROOT_PORT}; 1 in all)"),
        ({"group": "DMA", "number": 1}, ""),  # there is no second device
    ],
)
def test_pci_path_between_gpus(tmp_path, host, message_part):
    gpus(tmp_path, **host)
    findings = judged("pci-paths", tmp_path)
    assert causes_and_levels(findings) == (
        [("iommu-acs-p2p-hang", Level.WARNING)] if message_part else []
    )
    assert not findings or message_part in findings[0].message


def test_virtual_machine_is_not_judged(tmp_path):
    gpus(tmp_path, group="DMA", control=0x1D)
    write(tmp_path, {"proc/cpuinfo": "flags : fpu vme hypervisor lahf_lm"})
    assert judged("pci-paths", tmp_path) == ()


@pytest.mark.parametrize(
    ("gpu_nodes", "adapter_nodes", "far"),
    [
        ("0011", "0", "2 of 4 GPUs are on NUMA node 1"),
        ("0011", "01", ""),
        ("01", "", ""),
        ("0-", "0", ""),
    ],
)
def test_gpus_far_from_every_adapter(tmp_path, gpu_nodes, adapter_nodes, far):
    """``-``: a virtual machine does not show the node."""
    for kind, nodes in (("gpu", gpu_nodes), ("adapter", adapter_nodes)):
        vendor, number = (pci.NVIDIA, 0x030200) if kind == "gpu" else (pci.MELLANOX, 0x020700)
        for at, node in enumerate(nodes):
            bus = f"0000:{at}{'b' if kind == 'gpu' else 'c'}:00.0"
            device(tmp_path, bus, vendor, number, numa_node="-1" if node == "-" else node)
    findings = judged("pci-paths", tmp_path)
    assert causes_and_levels(findings) == ([("memory-on-another-node", Level.NOTE)] if far else [])
    assert not far or far in findings[0].message


def test_an_adapter_in_a_narrow_slot(tmp_path):
    device(
        tmp_path,
        "0000:ab:00.0",
        pci.MELLANOX,
        0x020700,
        current_link_width="8",
        max_link_width="16",
    )
    assert causes_and_levels(judged("pci-paths", tmp_path)) == [("ib-port-degraded", Level.WARNING)]


@pytest.mark.parametrize(
    ("host", "cause", "level", "message_part"),
    [
        ({}, None, None, ""),
        (
            {"module": "570.86.10"},
            "cuda-driver-mismatch",
            Level.ERROR,
            "needs driver 580.65.6 or newer; driver 570.86.10 is loaded",
        ),
        (
            {"module": "570.86.10", "has_compat": True},
            "cuda-driver-mismatch",
            Level.WARNING,
            "compat",
        ),
        (
            {"cuda": "12.8", "module": "535.183.01"},
            None,
            None,
            "",
        ),  # the same major version suffices
        ({"cuda": None}, "cuda-driver-mismatch", Level.ERROR, "built for CPU only"),
        ({"cuda": None, "rocm": "6.4"}, "cuda-driver-mismatch", Level.ERROR, "built for ROCm 6.4"),
        ({"library": ("575.51.02",)}, "cuda-driver-mismatch", Level.ERROR, "until a reboot"),
        ({"nccl": ("13", "2.26.2")}, "nccl-version-mismatch", Level.WARNING, "2.26.2"),
        ({"nccl": ("12", "2.28.3")}, "nccl-version-mismatch", Level.WARNING, "CUDA 12"),
        ({"nccl": ("13", "2.29.1")}, "nccl-version-mismatch", Level.NOTE, "2.29.1"),
        (
            {"nvidia": 0, "amd": 8, "module": None},
            "cuda-driver-mismatch",
            Level.WARNING,
            "not built for ROCm",
        ),
        ({"torch": None, "cuda": None}, None, None, ""),
    ],
)
def test_versions(host, cause, level, message_part):
    well = {
        "nvidia": 8,
        "torch": "2.9.0",
        "cuda": "13.0",
        "module": "580.95.05",
        "nccl": ("13", "2.28.3"),
        "nccl_required": ("13", "2.28.3"),
    }
    result = CudaResult(**well | {"library": (host.get("module") or "580.95.05",)} | host)
    findings = judge_check(CHECKS["cuda"], result, CheckContext(), "a")
    assert causes_and_levels(findings) == ([(cause, level)] if cause else [])
    assert not findings or message_part in findings[0].message


def test_the_kernel_log(tmp_path):
    write(tmp_path, {"dmesg.txt": LOG.format(old=ago(30), new=ago(2))})
    findings = judged("kernel-log", tmp_path)
    assert causes_and_levels(findings) == [
        (
            "gpu-fell-off-bus-xid-ecc",
            Level.ERROR,
        ),  # not Xid 31, which a program causes, and not a single lost link
        ("gpu-link-degraded", Level.WARNING),
        ("gpu-hw-fault", Level.WARNING),
    ]
    assert "Xid 79 on GPU 0000:3b:00.0 2 hours ago" in findings[0].message


@pytest.mark.parametrize(
    ("line", "hours", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off",
            50,
            ("gpu-fell-off-bus-xid-ecc", Level.WARNING),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked",
            1,
            ("gpu-memory-worn", Level.WARNING),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 64, Row Remapper: failed",
            1,
            ("gpu-memory-worn", Level.ERROR),
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 45, Ch 00000010", 1, None),
        (
            "NVRM: fallen off the bus and is not responding to commands.",
            1,
            ("gpu-fell-off-bus-xid-ecc", Level.ERROR),
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30",
            1,
            ("gpu-link-degraded", Level.WARNING),
        ),
        (
            "mlx5_core 0000:ab:00.0: poll_health:801:(pid 0): device's health compromised - reached miss count",
            1,
            ("ib-port-degraded", Level.ERROR),
        ),
    ],
)
def test_kernel_log_line(tmp_path, line, hours, expected):
    write(tmp_path, {"dmesg.txt": f"{ago(hours)} {line}"})
    assert causes_and_levels(judged("kernel-log", tmp_path)) == ([expected] if expected else [])


def test_a_link_that_flaps(tmp_path):
    write(tmp_path, {"dmesg.txt": f"{ago(1)} mlx5_core 0000:ab:00.0 ibp171s0: Link down\n" * 3})
    assert causes_and_levels(judged("kernel-log", tmp_path)) == [
        ("ib-port-degraded", Level.WARNING)
    ]


def test_amd_gpus(tmp_path):
    card = device(
        tmp_path,
        "0000:c1:00.0",
        pci.AMD,
        0x120000,
        driver="amdgpu",
        current_link_width="8",
        max_link_width="16",
    )
    write(
        card,
        {
            "hwmon/hwmon3/temp2_input": "97000",
            "hwmon/hwmon3/temp2_crit": "100000",
            "hwmon/hwmon3/power1_cap": "500000000",
            "hwmon/hwmon3/power1_cap_default": "750000000",
            "ras/umc_err_count": "ue: 1",
        },
    )
    findings = judged("amd-gpus", tmp_path, workers=8)
    assert [finding.cause for finding in findings] == [
        "cuda-driver-mismatch",
        "invalid-device-ordinal",
        "gpu-hw-fault",
        "gpu-throttled",
        "gpu-settings",
        "gpu-link-degraded",
    ]
    assert "/dev/kfd does not" in findings[0].message

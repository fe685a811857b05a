"""Judges whether GPUs and adapters can use direct PCIe peer-to-peer transfers."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.causes.gpu.iommu_acs_p2p_hang import IOMMU_ACS_P2P_HANG
from holdfast.causes.network.ib_port_degraded import IB_PORT_DEGRADED
from holdfast.causes.performance.memory_on_another_node import MEMORY_ON_ANOTHER_NODE
from holdfast.causes.remedies import automatic
from holdfast.core.findings import Finding, Level, make_finding
from holdfast.host.checks import CheckContext, check_fact
from holdfast.host.checks.devices.pci_paths import PciPathsResult


def judge(result: PciPathsResult, _context: CheckContext) -> Iterator[Finding]:
    """IOMMU and ACS matter only with at least two devices."""
    gpus = {device.bus for device in result.devices if device.is_gpu}
    if len(result.devices) > 1 and gpus:
        yield from _judge_iommu(result, gpus)
        yield from _judge_acs(result, gpus)
    yield from _judge_far_gpus(result)
    for device in result.devices:
        width, maximum = device.width, device.width_max
        if device.is_gpu or width is None or maximum is None or width >= maximum:
            continue
        lanes = check_fact(f"adapter {device.bus}", f"x{width} of x{maximum}", "current_link_width")
        yield make_finding(
            IB_PORT_DEGRADED,
            f"network adapter {device.bus} uses {width} of {maximum} PCIe lanes",
            level=Level.WARNING,
            evidence=(*result.facts(), lanes),
            confidence=0.7,
        )


def _judge_iommu(result: PciPathsResult, gpus: set[str]) -> Iterator[Finding]:
    """In a virtual machine the visible IOMMU is the guest's own; the host's settings decide."""
    translated = [
        mapping.bus
        for mapping in result.iommu
        if mapping.bus in gpus and mapping.mode in ("DMA", "DMA-FQ")
    ]
    if translated and not result.virtual:
        yield make_finding(
            IOMMU_ACS_P2P_HANG,
            f"the IOMMU translates addresses of {len(translated)} GPUs: peer-to-peer transfers may "
            "be slow, hang, or corrupt data",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.6,
        )


def _judge_acs(result: PciPathsResult, gpus: set[str]) -> Iterator[Finding]:
    """Report only bridges above a GPU, and not in a virtual machine, where ATS needs ACS."""
    redirecting = set(result.redirecting) if isinstance(result.redirecting, tuple) else set()
    above_gpus = {bus for device in result.devices if device.bus in gpus for bus in device.bridges}
    bridges = sorted(above_gpus & redirecting)
    if bridges and not result.virtual:
        yield make_finding(
            IOMMU_ACS_P2P_HANG,
            f"ACS on PCI bridges above GPUs ({', '.join(bridges[:4])}; {len(bridges)} in all) "
            "redirects peer-to-peer traffic through the root complex: transfers are slow or hang",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.7,
        )


def _judge_far_gpus(result: PciPathsResult) -> Iterator[Finding]:
    """Note GPUs on a NUMA node without an RDMA adapter; their traffic crosses the CPU sockets.

    NCCL reads from such a GPU through host memory: GPUDirect RDMA is used up to the distance PXB
    (NCCL_NET_GDR_LEVEL, NCCL 2.27, `src/graph/paths.cc`).
    """
    gpus = [device for device in result.devices if device.is_gpu]
    adapters = [device for device in result.devices if device.is_network]
    adapter_nodes = {adapter.node for adapter in adapters}
    far = [gpu for gpu in gpus if gpu.node not in adapter_nodes]
    if not adapters or not far or any(device.node is None for device in (*far, *adapters)):
        return
    nodes = ", ".join(map(str, sorted({gpu.node for gpu in far if gpu.node is not None})))
    placed = tuple(
        check_fact(f"NUMA node of {device.bus}", str(device.node), "numa_node")
        for device in (*far, *adapters)
    )
    yield make_finding(
        MEMORY_ON_ANOTHER_NODE,
        f"{len(far)} of {len(gpus)} GPUs are on NUMA node {nodes}, which has no RDMA adapter: "
        "their traffic to other hosts crosses the link between CPU sockets, without GPUDirect RDMA",
        level=Level.NOTE,
        evidence=placed,
        confidence=0.7,
        remedies=(automatic("Show the path from each GPU to each adapter.", "nvidia-smi topo -m"),),
    )

"""Recorded forms of ``nvidia-smi topo -m``, parsed and judged."""

from __future__ import annotations

import pytest

from holdfast.core.findings import Level, Unknown
from holdfast.host.check_rules.devices.gpu_topology import judge_pairs
from holdfast.host.gpus import DriverReport
from holdfast.host.gpus.topology import parse_topology

TAIL = "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"


def matrix(count, link):
    """Return the command's output; ``link``: of two GPUs, by their numbers."""
    names = [f"GPU{index}" for index in range(count)]
    lines = ["\t" + "\t".join(f"\x1b[4m{name}\x1b[0m" for name in names) + "\tNIC0" + TAIL]
    for row in range(count):
        cells = ["X" if row == column else link(row, column) for column in range(count)]
        lines.append("\t".join([f"GPU{row}", *cells, "PXB", "0-63", str(row // 4), "N/A"]))
    lines.append("\t".join(["NIC0", *("PXB" for _ in names), "X"]))
    return "\n".join([*lines, "", "Legend:", "  SYS  = Connection traversing PCIe", "  GPU0 = x"])


def judged(count, link):
    pairs = parse_topology(matrix(count, link))
    report = DriverReport(source="nvidia-smi", driver="", cuda="", gpus=(), pairs=pairs)
    return [(each.level, each.message) for each in judge_pairs(report, ())]


def test_all_pairs_are_parsed():
    pairs = parse_topology(matrix(8, lambda *_: "NV18"))
    assert len(pairs) == 28
    assert {pair.link for pair in pairs} == {"NVLink"}
    assert judged(8, lambda *_: "NV18") == []


def test_a_gpu_without_nvlink_is_named():
    [(level, text)] = judged(8, lambda a, b: "SYS" if 3 in (a, b) else "NV12")
    assert level is Level.WARNING
    assert text.startswith("GPU 3 has no NVLink in 7 of 28 pairs (SYS)")


def test_one_bad_pair_is_named():
    [(level, text)] = judged(8, lambda a, b: "PHB" if {a, b} == {2, 5} else "NV12")
    assert level is Level.WARNING
    assert "GPUs 2-5 have no NVLink in 1 of 28 pairs (PHB)" in text


def test_pairs_over_the_link_between_sockets_are_noted_with_the_near_groups():
    [(level, text)] = judged(8, lambda a, b: "PIX" if a // 4 == b // 4 else "SYS")
    assert level is Level.NOTE
    assert "16 of 28 pairs of GPUs communicate over the link between CPU sockets (SYS)" in text
    assert text.endswith("within GPUs 0-3 and 4-7")


def test_bridges_of_two_gpus_are_construction_and_no_fault():
    [(level, text)] = judged(4, lambda a, b: "NV4" if a // 2 == b // 2 else "SYS")
    assert level is Level.NOTE
    assert "within GPUs 0-1 and 2-3" in text


def test_pairs_behind_one_switch_have_no_finding():
    assert judged(4, lambda *_: "PIX") == []


@pytest.mark.parametrize("text", ["", "GPU0", "\tGPU0\nGPU0\tX\n", "No devices were found\n"])
def test_other_output_is_unknown(text):
    assert isinstance(parse_topology(text), Unknown)

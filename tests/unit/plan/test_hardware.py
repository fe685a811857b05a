"""GPU lookup by common names and cluster parsing from common notation."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidValue, UnknownName
from holdfast.plan.gpus import GPUS, GpuDtype, find_gpu
from holdfast.plan.hardware import Cluster, parse_clusters


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a100", "A100-80G"),
        ("a100_40gb", "A100-40G"),
        ("NVIDIA A100-SXM4-40GB", "A100-40G"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80G"),
        ("NVIDIA H100 80GB HBM3", "H100-80G"),
        ("H100 96GB HBM2e 500W", "H100-96G"),
        ("Tesla V100-SXM2-16GB", "V100-16G"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_gpu_is_found_by_common_names(written, name):
    assert find_gpu(written).name == name


def test_unknown_gpu_error_suggests_the_nearest_name():
    with pytest.raises(UnknownName, match="A100-40G"):
        find_gpu("A1000-40G")


def test_gpu_table_is_consistent():
    for each in GPUS.values():
        assert find_gpu(each.name) is each
        assert 1e12 < each.fp16 <= 2.5e15, each.name
        assert 0 < each.fp32 < each.fp16
        assert 3e11 <= each.bandwidth <= 8e12
        assert 0.4 <= each.matrix_share < 1
        assert each.source.startswith("https://")
        assert each.intra_node >= each.network


def test_bf16_follows_compute_capability():
    for each in GPUS.values():
        assert bool(each.bf16) == (each.capability >= (8, 0)), each.name
    assert find_gpu("T4").peak(GpuDtype.BF16) == 0
    assert find_gpu("T4").half_dtype is GpuDtype.FP16
    assert find_gpu("A10").half_dtype is GpuDtype.BF16


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("H100", "1 x 1 H100-80G"),
        ("4 V100", "1 x 4 V100-32G"),
        ("8xA100-40G", "1 x 8 A100-40G"),
        ("16xH100-80G/8", "2 x 8 H100-80G"),
        ("16 A100 / 4", "4 x 4 A100-80G"),
        ("2 x 8 A100-80G", "2 x 8 A100-80G"),
        ("2x8xA100-80G", "2 x 8 A100-80G"),
        ("64 h200", "8 x 8 H200"),
        ("8x4090", "1 x 8 RTX-4090"),
    ],
)
def test_parse_cluster(written, canonical):
    result = Cluster.parse(written)
    assert str(result) == canonical
    assert Cluster.parse(canonical) == result


def test_mixed_clusters_parse_but_are_not_one_cluster():
    kinds = parse_clusters("2 A100-80G and 2 V100-32G")
    assert [str(each) for each in kinds] == ["1 x 2 A100-80G", "1 x 2 V100-32G"]
    assert parse_clusters("2 A100-80G + 2 V100-32G") == kinds
    with pytest.raises(InvalidValue, match="one kind"):
        Cluster.parse("2 A100-80G + 2 V100-32G")


@pytest.mark.parametrize(
    "written", ["", "+", "8 x", "0 A100", "12 A100", "2 x 0 A100", "999999999999 A100", "8 A100/0"]
)
def test_invalid_clusters_are_rejected(written):
    with pytest.raises((InvalidValue, UnknownName)):
        Cluster.parse(written)


def test_node_bandwidth_is_parsed():
    assert Cluster.parse("4 x 8 A100 @ 400 Gbit/s").links.inter_node == 400e9 / 8 / 8
    assert Cluster.parse("4 x 8 A100 @ 50GB/s").links.inter_node == 50e9 / 8
    assert (
        Cluster.parse("4 x 8 A100@100Gbps").links.intra_node
        == Cluster.parse("4 x 8 A100").links.intra_node
    )
    for written in ("8 A100 @", "8 A100 @ 0 Gb/s", "8 A100 @ fast", "8 A100 @ 1 Gb/s @ 2 Gb/s"):
        with pytest.raises(InvalidValue, match="not a bandwidth"):
            Cluster.parse(written)


@given(st.text(max_size=60) | st.text(alphabet="0123456789xX@/+ ahgGbBs-.", max_size=40))
def test_any_text_parses_or_is_rejected(text):
    with suppress(InvalidValue, UnknownName):
        assert all(each.gpus >= 1 and each.links.inter_node > 0 for each in parse_clusters(text))


def test_resized_cluster_has_a_partial_or_more_nodes():
    assert str(Cluster.parse("4 x 8 A100").resized(2)) == "1 x 2 A100-80G"
    assert str(Cluster.parse("4 x 8 A100").resized(128)) == "16 x 8 A100-80G"

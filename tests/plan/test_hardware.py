"""GPUs are found under the names that people, clouds and drivers give them; clusters are read as they are written."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadValue, UnknownName
from holdfast.plan.gpus import GPUS, Dtype, gpu
from holdfast.plan.hardware import Cluster, parse_mixed


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
def test_a_gpu_has_many_names(written, name):
    assert gpu(written).name == name


def test_a_gpu_that_is_not_known_is_answered_with_the_nearest_ones():
    with pytest.raises(UnknownName, match="A100-40G"):
        gpu("A1000-40G")


def test_the_table_holds_together():
    for each in GPUS.values():
        assert gpu(each.name) is each
        assert 1e12 < each.fp16 <= 2.5e15, each.name
        assert 0 < each.fp32 < each.fp16
        assert 3e11 <= each.bandwidth <= 8e12
        assert 0.4 <= each.matrix_share < 1
        assert each.source.startswith("https://")
        assert each.inside >= each.network


def test_bf16_is_a_matter_of_compute_capability():
    for each in GPUS.values():
        assert bool(each.bf16) == (each.capability >= (8, 0)), each.name
    assert gpu("T4").peak(Dtype.BF16) == 0
    assert gpu("T4").half is Dtype.FP16
    assert gpu("A10").half is Dtype.BF16


@pytest.mark.parametrize(
    ("written", "read"),
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
def test_a_cluster_is_read(written, read):
    found = Cluster.parse(written)
    assert str(found) == read
    assert Cluster.parse(read) == found


def test_a_mixed_cluster_is_read_but_is_not_one():
    kinds = parse_mixed("2 A100-80G and 2 V100-32G")
    assert [str(each) for each in kinds] == ["1 x 2 A100-80G", "1 x 2 V100-32G"]
    assert parse_mixed("2 A100-80G + 2 V100-32G") == kinds
    with pytest.raises(BadValue, match="one kind"):
        Cluster.parse("2 A100-80G + 2 V100-32G")


@pytest.mark.parametrize(
    "written", ["", "+", "8 x", "0 A100", "12 A100", "2 x 0 A100", "999999999999 A100", "8 A100/0"]
)
def test_what_is_no_cluster_is_refused_in_a_sentence(written):
    with pytest.raises((BadValue, UnknownName)):
        Cluster.parse(written)


def test_a_network_may_be_given_for_a_node():
    assert Cluster.parse("4 x 8 A100 @ 400 Gbit/s").links.outside == 400e9 / 8 / 8
    assert Cluster.parse("4 x 8 A100 @ 50GB/s").links.outside == 50e9 / 8
    assert Cluster.parse("4 x 8 A100@100Gbps").links.inside == Cluster.parse("4 x 8 A100").links.inside
    for written in ("8 A100 @", "8 A100 @ 0 Gb/s", "8 A100 @ fast", "8 A100 @ 1 Gb/s @ 2 Gb/s"):
        with pytest.raises(BadValue, match="it is no rate"):
            Cluster.parse(written)


@given(st.text(max_size=60) | st.text(alphabet="0123456789xX@/+ ahgGbBs-.", max_size=40))
def test_any_text_is_read_or_refused_in_a_sentence(text):
    with suppress(BadValue, UnknownName):
        assert all(each.gpus >= 1 and each.links.outside > 0 for each in parse_mixed(text))


def test_a_part_of_a_node_is_a_node_of_its_own():
    assert str(Cluster.parse("4 x 8 A100").resized(2)) == "1 x 2 A100-80G"
    assert str(Cluster.parse("4 x 8 A100").resized(128)) == "16 x 8 A100-80G"

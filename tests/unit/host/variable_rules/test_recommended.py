"""Recommended variables per host and job, and those left to torch and NCCL."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.host.checks.devices.infiniband import Gid, Port
from holdfast.host.checks.network.interfaces import NetworkInterface
from holdfast.host.checks.network.routes import RouteLookup
from holdfast.host.variable_rules import audit
from holdfast.host.variable_rules.context import AuditContext
from holdfast.host.variable_rules.recommended import JobProfile, MachineFacts, recommend
from holdfast.host.variable_sources import from_environment

ETH0 = RouteLookup(address="10.0.0.1", interface="eth0", source="10.0.0.2")
GPUS = MachineFacts(
    gpus=8, cores=64, workers=8, endpoint="node0", route=ETH0, torch="2.13.0", nccl="2.29.7"
)


def port(device, layer="InfiniBand", *, active=True, rate=400.0, gids=()):
    state = "ACTIVE" if active else "DOWN"
    return Port(
        device=device,
        number=1,
        layer=layer,
        state=state,
        physical="LinkUp",
        rate_gbits=rate,
        lanes=4,
        gids=tuple(gids),
        pkeys=(0xFFFF,),
        errors={},
    )


def values(recommended):
    return {advice.name: advice.value for advice in recommended.variables}


def test_the_interface_is_that_of_the_route_to_the_rendezvous():
    recommended = recommend(GPUS)
    assert values(recommended)["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert values(recommended)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "packets to node0 use this interface" in recommended.variables[0].why


@pytest.mark.parametrize(
    ("route", "word"),
    [
        (None, "--rdzv-endpoint"),
        (RouteLookup(address="", refused="no such name"), "no such name"),
        (RouteLookup(address="127.0.0.1", interface="lo", local=True), "no other host can reach"),
    ],
)
def test_without_a_route_no_interface_is_guessed(route, word):
    recommended = recommend(replace(GPUS, route=route), JobProfile.ETHERNET)
    assert not [name for name in values(recommended) if name.endswith("IFNAME")]
    assert [text for text in recommended.left_out if word in text]


def test_the_endpoint_host_uses_the_interface_with_its_address():
    recommended = recommend(replace(GPUS, route=replace(ETH0, local=True)))
    assert values(recommended)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "is this host's address on it" in recommended.variables[0].why


def test_equal_adapters_are_left_to_nccl():
    recommended = recommend(replace(GPUS, ports=(port("mlx5_0"), port("mlx5_1"))))
    assert recommended.profile is JobProfile.INFINIBAND
    assert "NCCL_IB_HCA" not in values(recommended)
    assert [text for text in recommended.left_out if "all 2 active ports are equal" in text]


def test_slower_adapters_and_other_link_layers_are_excluded_by_name():
    ports = (
        port("mlx5_0"),
        port("mlx5_1", rate=100.0),
        port("mlx5_2", "Ethernet"),
        port("mlx5_3", active=False),
    )
    recommended = recommend(replace(GPUS, ports=ports))
    assert values(recommended)["NCCL_IB_HCA"] == "=mlx5_0:1"
    (why,) = [advice.why for advice in recommended.variables if advice.name == "NCCL_IB_HCA"]
    assert "mlx5_1:1" in why
    assert "mlx5_2:1" in why


def test_the_gid_index_is_only_for_old_nccl():
    gids = [
        Gid(0, "fe80::1", "IB/RoCE v1", "eth0"),
        Gid(1, "fe80::1", "RoCE v2", "eth0"),
        Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0002", "RoCE v2", "eth0"),
    ]
    roce = replace(GPUS, ports=(port("mlx5_0", "Ethernet", gids=gids),))
    assert recommend(roce).profile is JobProfile.ROCE
    assert "NCCL_IB_GID_INDEX" not in values(recommend(roce))
    assert values(recommend(replace(roce, nccl="2.18.3")))["NCCL_IB_GID_INDEX"] == "3"
    assert [text for text in recommend(roce).left_out if text.startswith("NCCL_IB_TC")]


def test_a_fast_network_without_rdma_gets_several_sockets():
    fast = NetworkInterface(name="eth0", up=True, mtu=9000, speed_mbit=100_000)
    assert values(recommend(replace(GPUS, interfaces=(fast,))))["NCCL_SOCKET_NTHREADS"] == "4"
    slow = replace(fast, speed_mbit=10_000)
    assert "NCCL_SOCKET_NTHREADS" not in values(recommend(replace(GPUS, interfaces=(slow,))))


def test_the_socket_profile_disables_rdma():
    recommended = recommend(replace(GPUS, ports=(port("mlx5_0"),)), JobProfile.ETHERNET)
    assert values(recommended)["NCCL_IB_DISABLE"] == "1"


def test_one_host_needs_no_network():
    recommended = recommend(replace(GPUS, nodes=1, ports=(port("mlx5_0"),)))
    assert recommended.profile is JobProfile.SINGLE_NODE
    assert not [name for name in values(recommended) if name.startswith("NCCL")]


def test_a_host_without_gpus_gets_nothing_of_nccl_unless_a_profile_is_requested():
    """A requested profile is for the hosts of the job, and is often written on a login node."""
    host = replace(GPUS, gpus=0, nodes=2)
    assert not [name for name in values(recommend(host)) if "NCCL" in name]
    ethernet = recommend(host, JobProfile.ETHERNET)
    assert {"NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME"} <= set(values(ethernet))
    assert "this host has no GPU" in ethernet.chosen_because
    assert "NCCL_DEBUG" in values(recommend(host, JobProfile.DEBUG))
    assert "NCCL_SOCKET_IFNAME" in values(recommend(host, JobProfile.INFINIBAND))


def test_user_settings_are_not_changed():
    recommended = recommend(
        replace(GPUS, environ={"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "eth0"})
    )
    assert not [name for name in values(recommended) if name.endswith("IFNAME")]
    assert [
        text
        for text in recommended.left_out
        if text.startswith("GLOO_SOCKET_IFNAME=ib0: already set and not changed")
    ]
    assert [text for text in recommended.left_out if text == "NCCL_SOCKET_IFNAME=eth0: already set"]


def test_the_flight_recorder_is_only_recommended_for_old_torch():
    assert values(recommend(replace(GPUS, torch="2.9.1")))["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert "TORCH_FR_BUFFER_SIZE" not in values(recommend(GPUS))


@pytest.mark.parametrize(
    "profile", [profile for profile in JobProfile if profile is not JobProfile.DEBUG]
)
def test_the_audit_accepts_all_recommendations(profile):
    ports = (port("mlx5_0"), port("mlx5_1", rate=100.0), port("mlx5_2", "Ethernet"))
    machine = replace(GPUS, ports=ports if profile is not JobProfile.ETHERNET else ())
    recommended = values(recommend(machine, profile))
    assert audit(from_environment(recommended), AuditContext(torch="2.13.0", nccl="2.29.7")) == ()


def test_debug_profile():
    recommended = values(recommend(GPUS, JobProfile.DEBUG))
    assert recommended["NCCL_DEBUG"] == "INFO"
    assert recommended["TORCH_FR_BUFFER_SIZE"] == recommended["TORCH_NCCL_TRACE_BUFFER_SIZE"]
    assert "CUDA_LAUNCH_BLOCKING" not in recommended
    findings = audit(from_environment(recommended), AuditContext(torch="2.13.0", nccl="2.29.7"))
    assert {finding.cause for finding in findings} <= {"variable-harmful", "variable-renamed"}

"""What is recommended for which host, and what is left to torch and NCCL."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.facts.checks.infiniband import Gid, Port
from holdfast.facts.checks.interfaces import Interface
from holdfast.facts.checks.routes import Way
from holdfast.facts.variables import in_environment
from holdfast.rules.environment import audit
from holdfast.rules.environment.recommended import Machine, Profile, recommend
from holdfast.rules.environment.scene import Scene

ETH0 = Way(address="10.0.0.1", interface="eth0", source="10.0.0.2")
GPUS = Machine(gpus=8, cores=64, workers=8, endpoint="node0", way=ETH0, torch="2.13.0", nccl="2.29.7")


def port(device, layer="InfiniBand", *, active=True, rate=400.0, gids=()):
    state = "ACTIVE" if active else "DOWN"
    return Port(device=device, number=1, kind="MT4129", firmware="28", layer=layer, state=state, physical="LinkUp",
                rate_gbits=rate, lanes=4, subnet_manager=True, gids=tuple(gids), pkeys=(0xFFFF,),
                errors={})  # fmt: skip


def values(found):
    return {advice.name: advice.value for advice in found.variables}


def test_the_interface_is_that_of_the_route_to_the_rendezvous():
    found = recommend(GPUS)
    assert values(found)["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert values(found)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "packets to node0 leave through it" in found.variables[0].why


@pytest.mark.parametrize(
    ("way", "word"),
    [(None, "--rdzv-endpoint"), (Way(address="", refused="there is no such name"), "there is no such name"),
     (Way(address="127.0.0.1", interface="lo", local=True), "no other host can reach")],
)  # fmt: skip
def test_without_a_way_no_interface_is_guessed(way, word):
    found = recommend(replace(GPUS, way=way), Profile.ETHERNET)
    assert not [name for name in values(found) if name.endswith("IFNAME")]
    assert [text for text in found.left_out if word in text]


def test_the_master_itself_takes_the_interface_that_has_the_address():
    found = recommend(replace(GPUS, way=replace(ETH0, local=True)))
    assert values(found)["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "is this host's address on it" in found.variables[0].why


def test_adapters_that_are_alike_are_left_to_nccl():
    found = recommend(replace(GPUS, ports=(port("mlx5_0"), port("mlx5_1"))))
    assert found.profile is Profile.INFINIBAND
    assert "NCCL_IB_HCA" not in values(found)
    assert [text for text in found.left_out if "all 2 active ports are alike" in text]


def test_slower_adapters_and_those_of_the_other_kind_are_left_out_by_name():
    ports = (port("mlx5_0"), port("mlx5_1", rate=100.0), port("mlx5_2", "Ethernet"), port("mlx5_3", active=False))
    found = recommend(replace(GPUS, ports=ports))
    assert values(found)["NCCL_IB_HCA"] == "=mlx5_0:1"
    (why,) = [advice.why for advice in found.variables if advice.name == "NCCL_IB_HCA"]
    assert "mlx5_1:1" in why
    assert "mlx5_2:1" in why


def test_the_row_of_the_address_is_for_old_nccl_alone():
    gids = [Gid(0, "fe80::1", "IB/RoCE v1", "eth0"), Gid(1, "fe80::1", "RoCE v2", "eth0"),
            Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0002", "RoCE v2", "eth0")]  # fmt: skip
    roce = replace(GPUS, ports=(port("mlx5_0", "Ethernet", gids=gids),))
    assert recommend(roce).profile is Profile.ROCE
    assert "NCCL_IB_GID_INDEX" not in values(recommend(roce))
    assert values(recommend(replace(roce, nccl="2.18.3")))["NCCL_IB_GID_INDEX"] == "3"
    assert [text for text in recommend(roce).left_out if text.startswith("NCCL_IB_TC")]


def test_a_fast_network_without_rdma_takes_several_sockets():
    fast = Interface(name="eth0", up=True, mtu=9000, speed_mbit=100_000)
    assert values(recommend(replace(GPUS, interfaces=(fast,))))["NCCL_SOCKET_NTHREADS"] == "4"
    slow = replace(fast, speed_mbit=10_000)
    assert "NCCL_SOCKET_NTHREADS" not in values(recommend(replace(GPUS, interfaces=(slow,))))


def test_sockets_where_rdma_was_there_turn_it_off():
    found = recommend(replace(GPUS, ports=(port("mlx5_0"),)), Profile.ETHERNET)
    assert values(found)["NCCL_IB_DISABLE"] == "1"


def test_one_host_needs_no_network():
    found = recommend(replace(GPUS, nodes=1, ports=(port("mlx5_0"),)))
    assert found.profile is Profile.SINGLE_NODE
    assert not [name for name in values(found) if name.startswith("NCCL")]


def test_a_host_without_gpus_gets_nothing_of_nccl():
    for profile in Profile:
        found = recommend(replace(GPUS, gpus=0, ports=(port("mlx5_0"),)), profile)
        assert not [name for name in values(found) if "NCCL" in name and name != "NCCL_IB_HCA"]


def test_what_the_user_has_set_stays():
    found = recommend(replace(GPUS, environ={"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "eth0"}))
    assert not [name for name in values(found) if name.endswith("IFNAME")]
    assert [text for text in found.left_out if text.startswith("GLOO_SOCKET_IFNAME=ib0: you have set it, and it stays")]
    assert [text for text in found.left_out if text.startswith("NCCL_SOCKET_IFNAME=eth0: you have set it so already")]


def test_old_torch_gets_its_flight_recorder_and_new_torch_needs_no_word():
    assert values(recommend(replace(GPUS, torch="2.9.1")))["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert "TORCH_FR_BUFFER_SIZE" not in values(recommend(GPUS))


@pytest.mark.parametrize("profile", [each for each in Profile if each is not Profile.DEBUG])
def test_our_own_audit_finds_nothing_in_what_is_recommended(profile):
    ports = (port("mlx5_0"), port("mlx5_1", rate=100.0), port("mlx5_2", "Ethernet"))
    machine = replace(GPUS, ports=ports if profile is not Profile.ETHERNET else ())
    found = values(recommend(machine, profile))
    assert audit(in_environment(found), Scene(torch="2.13.0", nccl="2.29.7")) == ()


def test_debugging_is_complete_and_said_to_cost():
    found = values(recommend(GPUS, Profile.DEBUG))
    assert found["NCCL_DEBUG"] == "INFO"
    assert found["TORCH_FR_BUFFER_SIZE"] == found["TORCH_NCCL_TRACE_BUFFER_SIZE"]
    assert "CUDA_LAUNCH_BLOCKING" not in found
    claims = audit(in_environment(found), Scene(torch="2.13.0", nccl="2.29.7"))
    assert {claim.cause for claim in claims} <= {"variable-harmful", "variable-renamed"}

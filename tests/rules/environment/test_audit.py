"""The rules over variables: what each set variable gets said about it, and that healthy ones get nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.facts.launch_files.scanning import scan
from holdfast.facts.variables import Given, in_environment
from holdfast.findings import Level
from holdfast.rules.environment import audit
from holdfast.rules.environment.scene import Scene

#: The table of variables that are read by nobody, have another name, or do not do what is said of them.
_MYTHS = """
NCCL_TIMEOUT NCCL_SOCKET_TIMEOUT NCCL_CONNECT_TIMEOUT TORCH_DISTRIBUTED_TIMEOUT TORCH_NCCL_TIMEOUT
TORCH_NCCL_TIMEOUT_SEC GLOO_TIMEOUT GLOO_TIMEOUT_SECONDS NCCL_HEARTBEAT_TIMEOUT_SEC NCCL_ENABLE_MONITORING
NCCL_TREE_THRESHOLD NCCL_LL_THRESHOLD NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_DESYNC_DEBUG
NCCL_ENABLE_TIMING TORCH_NCCL_TRACE_BUFFER_SIZE NCCL_MAX_NCHANNELS NCCL_MIN_NCHANNELS NCCL_MIN_NRINGS
NCCL_MAX_NRINGS NCCL_LAUNCH_MODE NCCL_GROUP_CUDA_STREAM NCCL_GRAPH_HELPER_DISABLE NCCL_NVLS_DISABLE NCCL_IB_ENABLE
NCCL_P2P_ENABLE NCCL_NVLINK_DISABLE NCCL_MIN_CHANNELS NCCL_MAX_CHANNELS NCCL_SOCKET_NSOCKS_PERTHREAD
NCCL_BUFFER_SIZE NCCL_DEBUG_LEVEL NCCL_MAX_P2P_PEERS NCCL_MAX_CGA_CLUSTER_SIZE NCCL_IB_NET_LATENCY
NCCL_NET_MAX_REQUESTS NCCL_ABORT_ON_ERROR NCCL_AVOID_RECORD_STREAMS TORCH_DISTRIBUTED_DETAILED_LOGGING
TORCHELASTIC_MAX_CALLTIME NCCL_SHM_USE_CUDA_MEMCPY FI_EFA_SET_CUDA_SYNC_MEMOPS FI_EFA_MTU_SIZE NNODES
NPROC_PER_NODE NODE_RANK
"""
MYTHS = _MYTHS.split()
#: The same of values.
TRAPS = {
    "NCCL_IB_RETRY_CNT": "15", "NCCL_NET_GDR_LEVEL": "phb", "NCCL_NTHREADS": "500", "NCCL_IB_DISABLE": "true",
    "NCCL_P2P_DISABLE": "yes", "NCCL_BUFFSIZE": "8M", "NCCL_DEBUG": "DEBUG", "NCCL_DEBUG_SUBSYS": "INIT,NETWORK",
    "NCCL_ALGO": "Rings", "NCCL_PROTO": "LL64", "NCCL_IB_TIMEOUT": "60", "TORCH_NCCL_DUMP_ON_TIMEOUT": "maybe",
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "true", "TORCH_DISTRIBUTED_DEBUG": "VERBOSE", "TORCH_CPP_LOG_LEVEL": "DEBUG",
    "GLOO_SOCKET_IFNAME": "^docker", "NCCL_SOCKET_NTHREADS": "010", "TORCH_FR_BUFFER_SIZE": "many",
    "NCCL_IB_PKEY": "0x1ffff",
}  # fmt: skip
HEALTHY = {
    "NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "=mlx5_0:1",
    "NCCL_IB_TIMEOUT": "22", "NCCL_IB_GID_INDEX": "3", "NCCL_CROSS_NIC": "1", "NCCL_ALGO": "^Tree",
    "NCCL_BUFFSIZE": "8388608",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_DISTRIBUTED_DEBUG": "info", "OMP_NUM_THREADS": "8",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,roundup_power2_divisions:[256:1,512:2]", "RANK": "0",
    "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "node0", "NCCL_P2P_LEVEL": "NVL",
    "NCCL_VERSION": "2.29.7",
    "NCCL_NET_GDR_LEVEL": "SYS", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_CUMEM_ENABLE": "-2", "NCCL_P2P_DISABLE": "0",
    "TORCH_HOME": "/cache", "TORCH_COMPILE_DEBUG": "0", "HCCL_CONNECT_TIMEOUT": "600", "NCCL_NET_PLUGIN": "none",
    "NCCL_TIMEOUT": "",
}  # fmt: skip
SCENE = Scene(nccl="2.30.7", torch="2.13.0")


def said(environ, scene=SCENE):
    """Name -> cause, level and sentence of what is found about an environment."""
    return [(claim.cause, claim.level, claim.message) for claim in audit(in_environment(environ), scene)]


def test_every_myth_in_a_planted_script_is_found_with_its_line(tmp_path):
    script = tmp_path / "launch.sh"
    lines = ["#!/bin/bash", *(f"export {name}=1" for name in MYTHS), *(f"export {k}={v!r}" for k, v in TRAPS.items())]
    script.write_text("\n".join([*lines, "torchrun --nproc-per-node 8 train.py", ""]))
    found = audit(scan([script]).given, Scene())
    assert set(range(2, len(lines) + 1)) - {claim.subject.line for claim in found} == set()
    for claim in found:
        name = lines[claim.subject.line - 1].split()[1].partition("=")[0]
        assert name in claim.message
        assert claim.subject.file == str(script)
        assert claim.evidence[0].origin == f"{script}:{claim.subject.line}"


@pytest.mark.parametrize("name", MYTHS)
def test_every_myth_in_the_environment_is_found(name):
    assert any(name in message for _, _, message in said({name: "1"}))


@pytest.mark.parametrize(("name", "value"), TRAPS.items())
def test_every_trap_of_a_value_is_found_and_is_of_the_value(name, value):
    assert "variable-value-unusable" in {cause for cause, _, _ in said({name: value})}


def test_what_is_right_gets_no_finding():
    assert said(HEALTHY) == []


@pytest.mark.parametrize(("name", "value"), [item for item in HEALTHY.items() if "TRACE_BUFFER" not in item[0]])
def test_nor_does_each_by_itself(name, value):
    assert said({name: value}) == []


def test_a_time_out_that_nothing_reads_is_named_with_what_governs():
    ((cause, level, sentence),) = said({"NCCL_TIMEOUT": "1800", "NCCL_DEBUG": "WARN"})
    assert (cause, level) == ("nccl-timeout-ignored", Level.WARNING)
    assert sentence.startswith("NCCL_TIMEOUT=1800 has no effect")
    assert "init_process_group(timeout=timedelta(seconds=1800))" in sentence


@pytest.mark.parametrize("name", ["NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING"])
def test_an_old_name_is_answered_with_the_new_one(name):
    sentences = [message for cause, _, message in said({name: "1"}) if cause == "variable-renamed"]
    assert f"say TORCH_{name}=1" in sentences[0]
    assert [cause for cause, _, _ in said({name: "1", f"TORCH_{name}": "1"}) if cause == "variable-renamed"] == []


def test_an_old_name_that_works_is_a_note_and_one_that_is_overruled_a_warning():
    assert said({"NCCL_ENABLE_TIMING": "1"})[0][1] is Level.NOTE
    assert said({"NCCL_ASYNC_ERROR_HANDLING": "1"})[0][1] is Level.WARNING
    assert said({"NCCL_ASYNC_ERROR_HANDLING": "1"}, Scene(elastic=False))[0][1] is Level.NOTE


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("NCCL_SOKET_IFNAME", "NCCL_SOCKET_IFNAME"), ("NCLL_DEBUG", "NCCL_DEBUG"), ("NCCLDEBUG", "NCCL_DEBUG"),
     ("TORCH_NCCL_ASYNC_ERROR_HANDLNG", "TORCH_NCCL_ASYNC_ERROR_HANDLING"), ("PET_NNODE", "PET_NNODES"),
     ("GLOO_SOCKET_IFNAM", "GLOO_SOCKET_IFNAME"), ("NCCL_IB_GID_INDX", "NCCL_IB_GID_INDEX")],
)  # fmt: skip
def test_a_misspelt_name_gets_the_one_that_was_meant(typed, meant):
    ((cause, level, sentence),) = said({typed: "1"})
    assert (cause, level) == ("variable-never-read", Level.WARNING)
    assert sentence.endswith(f"did you mean {meant}?")


def test_a_name_that_nobody_knows_is_a_note_as_a_plugin_may_read_it():
    ((cause, level, _),) = said({"NCCL_ACME_FABRIC_MODE": "1"})
    assert (cause, level) == ("variable-never-read", Level.NOTE)
    assert said({"NCCL_FASTRAK_ENABLE_HOTPATH_LOGGING": "0"}) == []


def test_versions_decide_what_is_gone_and_what_is_not_there_yet():
    copy = {"NCCL_SHM_USE_CUDA_MEMCPY": "1"}
    assert said(copy, Scene(nccl="2.29.7"))[0][1] is Level.NOTE
    assert said(copy, Scene(nccl="2.30.7"))[0][1] is Level.WARNING
    new = {"TORCH_FR_BUFFER_SIZE": "2000"}
    assert "reads it from 2.8-2.9 on" in said(new, Scene(torch="2.5.1"))[0][2]
    assert said(new, Scene(torch="2.13.0+cpu")) == []
    assert said(new, Scene()) == []


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"}, "NCCL_IB_HCA=mlx5 has no effect"),
        ({"NCCL_NET": "Socket", "NCCL_IB_TC": "106"}, "NCCL_IB_TC=106 has no effect"),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, "NCCL cannot start"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, "wins over"),
        ({"NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "4"}, "is more than"),
        ({"NCCL_DEBUG_SUBSYS": "INIT"}, "without NCCL_DEBUG"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "backend:native"}, "two names"),
        ({"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}, "two names"),
        ({"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, "turns off"),
        ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}, "more than 64"),
        ({"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "ib0"}, "different interfaces"),
        ({"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "NVLS"}, "finds no algorithm"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "ranks begin at 0"),
        ({"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "never meet"),
    ],
    ids=str,
)
def test_variables_that_do_not_go_together(environ, word):
    messages = [message for cause, _, message in said(environ) if cause == "variables-contradict"]
    assert [message for message in messages if word in message]


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_P2P_DISABLE", "1"), ("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL128"), ("CUDA_LAUNCH_BLOCKING", "1"),
     ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"), ("TORCH_NCCL_BLOCKING_WAIT", "1"),
     ("NCCL_SHM_DISABLE", "1"), ("TORCH_NCCL_ENABLE_MONITORING", "0"), ("NCCL_NET_GDR_LEVEL", "LOC")],
)  # fmt: skip
def test_what_does_harm_is_a_warning(name, value):
    assert ("variable-harmful", Level.WARNING) in {(cause, level) for cause, level, _ in said({name: value})}


def test_infiniband_turned_off_where_there_is_none_is_a_note():
    assert said({"NCCL_IB_DISABLE": "1"}, Scene(infiniband=False))[0][1] is Level.NOTE
    assert said({"NCCL_IB_DISABLE": "1"}, Scene(infiniband=True))[0][1] is Level.WARNING


@pytest.mark.parametrize(("name", "value", "wrong"), [
    ("NCCL_SOCKET_IFNAME", "eth", False), ("NCCL_SOCKET_IFNAME", "=eth", True), ("NCCL_SOCKET_IFNAME", "ib", True),
    ("NCCL_SOCKET_IFNAME", "^ib", False), ("GLOO_SOCKET_IFNAME", "eth", True), ("GLOO_SOCKET_IFNAME", "eth0", False),
    ("NCCL_SOCKET_IFNAME", "ib,eth0", False),
])  # fmt: skip
def test_an_interface_that_is_not_here(name, value, wrong):
    found = said({name: value}, Scene(interfaces=("eth0", "lo")))
    assert [cause for cause, _, _ in found] == ["network-interface-wrong"] * wrong


def test_a_value_that_only_the_run_knows_is_not_judged_and_a_name_is():
    given = [Given(name=name, value=None, origin="a.sh", line=3) for name in ("NCCL_IB_DISABLE", "NCCL_TIMEOUT")]
    (claim,) = audit(given, Scene())
    assert claim.message.startswith("NCCL_TIMEOUT has no effect")


def test_secrets_are_not_shown():
    (claim,) = audit(in_environment({"NCCL_ACME_TOKEN": "hf_0123456789abcdef"}), Scene())
    assert "hf_0123" not in repr(claim)


def test_every_cause_that_is_claimed_is_in_the_documentation():
    rules = Path(__file__).parents[3] / "src/holdfast/rules/environment"
    claimed = {name for file in rules.glob("*.py") for name in re.findall(r'"((?:variable|nccl|network)s?-[a-z-]+)"',
                                                                          file.read_text())}  # fmt: skip
    pages = {page.stem for page in (Path(__file__).parents[3] / "docs/causes").glob("*.md")}
    assert len(claimed) > 8
    assert claimed - pages == set()


def test_what_is_for_one_command_is_not_held_against_another(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("NCCL_P2P_LEVEL=NVL ./a\nNCCL_P2P_DISABLE=1 ./b\n")
    assert "variables-contradict" not in {claim.cause for claim in audit(scan([script]).given, Scene())}
    script.write_text("export NCCL_P2P_LEVEL=NVL\nNCCL_P2P_DISABLE=1 ./b\n")
    assert "variables-contradict" in {claim.cause for claim in audit(scan([script]).given, Scene())}


def test_nor_are_containers_of_one_manifest(tmp_path):
    file = tmp_path / "pods.yaml"
    one = "env:\n      - {name: NCCL_IB_DISABLE, value: '1'}\n"
    other = "      - {name: NCCL_IB_HCA, value: mlx5}\n"
    file.write_text(f"a:\n  - {one}  - env:\n{other}")
    assert "variables-contradict" not in {claim.cause for claim in audit(scan([file]).given, Scene())}
    file.write_text(f"a:\n  - {one}{other}")
    assert "variables-contradict" in {claim.cause for claim in audit(scan([file]).given, Scene())}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "NCCL_PROTO: null\nNCCL_ALGO: ~\nNCCL_IB_TIMEOUT:\n"),
        ("Dockerfile", "ARG NCCL_VERSION=2.1\nARG NCCL_TESTS_VERSION=2\n"),
        ("Dockerfile", "ENV NCCL_VERSION=2 NCCL_SOCKET_IFNAME=^docker,lo\nRUN make NCCL_HOME=/opt/nccl MPI=1\n"),
        ("Dockerfile", "RUN export TORCH_CUDA_ARCH_LIST=9.0 && pip install x\n"),
        ("Dockerfile", "RUN echo NCCL_DEBUG=WARN >> /etc/nccl.conf\n"),
        ("a.sh", "CUDA_HOME=/usr/local/cuda\nNCCL_VERSION=2.1\nmake NCCL_HOME=/opt/nccl\n"),
        ("a.sh", "export NCCL_NET_GDR_LEVEL=5\n"),
    ],
)  # fmt: skip
def test_what_public_files_have_and_is_right(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert audit(scan([tmp_path]).given, Scene()) == ()

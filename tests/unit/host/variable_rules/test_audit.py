"""The variable rules: every known mistake is reported, and correct settings are not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.core.findings import Level
from holdfast.host.launch_files.scanning import scan_folder
from holdfast.host.variable_rules import audit
from holdfast.host.variable_rules.context import AuditContext
from holdfast.host.variable_sources import VariableSetting, from_environment

#: Variables that nothing reads, that have another name, or that lack the effect attributed to them.
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
#: Values that are rejected, ignored or misparsed.
INVALID = {
    "NCCL_IB_RETRY_CNT": "15",
    "NCCL_NET_GDR_LEVEL": "phb",
    "NCCL_NTHREADS": "500",
    "NCCL_IB_DISABLE": "true",
    "NCCL_P2P_DISABLE": "yes",
    "NCCL_BUFFSIZE": "8M",
    "NCCL_DEBUG": "DEBUG",
    "NCCL_DEBUG_SUBSYS": "INIT,NETWORK",
    "NCCL_ALGO": "Rings",
    "NCCL_PROTO": "LL64",
    "NCCL_IB_TIMEOUT": "60",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "maybe",
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "true",
    "TORCH_DISTRIBUTED_DEBUG": "VERBOSE",
    "TORCH_CPP_LOG_LEVEL": "DEBUG",
    "GLOO_SOCKET_IFNAME": "^docker",
    "NCCL_SOCKET_NTHREADS": "010",
    "TORCH_FR_BUFFER_SIZE": "many",
    "NCCL_IB_PKEY": "0x1ffff",
}
HEALTHY = {
    "NCCL_DEBUG": "WARN",
    "NCCL_SOCKET_IFNAME": "=eth0",
    "GLOO_SOCKET_IFNAME": "eth0",
    "NCCL_IB_HCA": "=mlx5_0:1",
    "NCCL_IB_TIMEOUT": "22",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_CROSS_NIC": "1",
    "NCCL_ALGO": "^Tree",
    "NCCL_BUFFSIZE": "8388608",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_DISTRIBUTED_DEBUG": "info",
    "OMP_NUM_THREADS": "8",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,roundup_power2_divisions:[256:1,512:2]",
    "RANK": "0",
    "WORLD_SIZE": "16",
    "LOCAL_WORLD_SIZE": "8",
    "MASTER_ADDR": "node0",
    "NCCL_P2P_LEVEL": "NVL",
    "NCCL_VERSION": "2.29.7",
    "NCCL_NET_GDR_LEVEL": "SYS",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NCCL_CUMEM_ENABLE": "-2",
    "NCCL_P2P_DISABLE": "0",
    "TORCH_HOME": "/cache",
    "TORCH_COMPILE_DEBUG": "0",
    "HCCL_CONNECT_TIMEOUT": "600",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_TIMEOUT": "",
}
CONTEXT = AuditContext(nccl="2.30.7", torch="2.13.0")


def audited(environ, context=CONTEXT):
    """Return cause, level and message of the findings about an environment."""
    return [
        (finding.cause, finding.level, finding.message)
        for finding in audit(from_environment(environ), context)
    ]


def test_every_mistake_in_a_script_is_reported_with_its_line(tmp_path):
    script = tmp_path / "launch.sh"
    lines = [
        "#!/bin/bash",
        *(f"export {name}=1" for name in MYTHS),
        *(f"export {k}={v!r}" for k, v in INVALID.items()),
    ]
    script.write_text("\n".join([*lines, "torchrun --nproc-per-node 8 train.py", ""]))
    findings = audit(scan_folder([script]).settings, AuditContext())
    assert set(range(2, len(lines) + 1)) - {finding.subject.line for finding in findings} == set()
    for finding in findings:
        name = lines[finding.subject.line - 1].split()[1].partition("=")[0]
        assert name in finding.message
        assert finding.subject.file == str(script)
        assert finding.evidence[0].origin == f"{script}:{finding.subject.line}"


@pytest.mark.parametrize("name", MYTHS)
def test_every_myth_in_the_environment_is_reported(name):
    assert any(name in message for _, _, message in audited({name: "1"}))


@pytest.mark.parametrize(("name", "value"), INVALID.items())
def test_every_invalid_value_is_reported(name, value):
    assert "variable-value-unusable" in {cause for cause, _, _ in audited({name: value})}


def test_correct_settings_are_no_finding():
    assert audited(HEALTHY) == []


@pytest.mark.parametrize(
    ("name", "value"), [item for item in HEALTHY.items() if "TRACE_BUFFER" not in item[0]]
)
def test_each_correct_setting_alone_is_no_finding(name, value):
    assert audited({name: value}) == []


def test_a_timeout_that_nothing_reads_is_reported_with_the_effective_one():
    ((cause, level, sentence),) = audited({"NCCL_TIMEOUT": "1800", "NCCL_DEBUG": "WARN"})
    assert (cause, level) == ("nccl-timeout-ignored", Level.WARNING)
    assert sentence.startswith("NCCL_TIMEOUT=1800 has no effect")
    assert "init_process_group(timeout=timedelta(seconds=1800))" in sentence


@pytest.mark.parametrize(
    "name", ["NCCL_ASYNC_ERROR_HANDLING", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING"]
)
def test_an_old_name_is_reported_with_the_new_one(name):
    sentences = [
        message for cause, _, message in audited({name: "1"}) if cause == "variable-renamed"
    ]
    assert f"use TORCH_{name}=1" in sentences[0]
    assert [
        cause
        for cause, _, _ in audited({name: "1", f"TORCH_{name}": "1"})
        if cause == "variable-renamed"
    ] == []


def test_an_old_name_that_works_is_a_note_and_an_overridden_one_a_warning():
    assert audited({"NCCL_ENABLE_TIMING": "1"})[0][1] is Level.NOTE
    assert audited({"NCCL_ASYNC_ERROR_HANDLING": "1"})[0][1] is Level.WARNING
    assert (
        audited({"NCCL_ASYNC_ERROR_HANDLING": "1"}, AuditContext(elastic=False))[0][1] is Level.NOTE
    )


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("NCCL_SOKET_IFNAME", "NCCL_SOCKET_IFNAME"),
        ("NCLL_DEBUG", "NCCL_DEBUG"),
        ("NCCLDEBUG", "NCCL_DEBUG"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLNG", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ("PET_NNODE", "PET_NNODES"),
        ("GLOO_SOCKET_IFNAM", "GLOO_SOCKET_IFNAME"),
        ("NCCL_IB_GID_INDX", "NCCL_IB_GID_INDEX"),
    ],
)
def test_a_misspelled_name_is_reported_with_the_intended_one(typed, meant):
    ((cause, level, sentence),) = audited({typed: "1"})
    assert (cause, level) == ("variable-never-read", Level.WARNING)
    assert sentence.endswith(f"did you mean {meant}?")


def test_an_unknown_name_is_a_note_because_a_plugin_may_read_it():
    ((cause, level, _),) = audited({"NCCL_ACME_FABRIC_MODE": "1"})
    assert (cause, level) == ("variable-never-read", Level.NOTE)
    assert audited({"NCCL_FASTRAK_ENABLE_HOTPATH_LOGGING": "0"}) == []


def test_removed_and_newer_variables_depend_on_installed_versions():
    copy = {"NCCL_SHM_USE_CUDA_MEMCPY": "1"}
    assert audited(copy, AuditContext(nccl="2.29.7"))[0][1] is Level.NOTE
    assert audited(copy, AuditContext(nccl="2.30.7"))[0][1] is Level.WARNING
    new = {"TORCH_FR_BUFFER_SIZE": "2000"}
    assert "only 2.8-2.9 or newer reads it" in audited(new, AuditContext(torch="2.5.1"))[0][2]
    assert audited(new, AuditContext(torch="2.13.0+cpu")) == []
    assert audited(new, AuditContext()) == []


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"NCCL_IB_DISABLE": "1", "NCCL_IB_HCA": "mlx5"}, "NCCL_IB_HCA=mlx5 has no effect"),
        ({"NCCL_NET": "Socket", "NCCL_IB_TC": "106"}, "NCCL_IB_TC=106 has no effect"),
        ({"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}, "NCCL cannot start"),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_P2P_LEVEL": "NVL"}, "overrides"),
        ({"NCCL_MIN_CTAS": "16", "NCCL_MAX_CTAS": "4"}, "is greater than"),
        ({"NCCL_DEBUG_SUBSYS": "INIT"}, "without NCCL_DEBUG"),
        (
            {
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
                "PYTORCH_ALLOC_CONF": "backend:native",
            },
            "two names",
        ),
        ({"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "100"}, "two names"),
        ({"TORCH_FR_BUFFER_SIZE": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}, "disables"),
        ({"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"}, "more than 64"),
        ({"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "ib0"}, "different interfaces"),
        ({"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "NVLS"}, "finds no algorithm"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "ranks start at 0"),
        (
            {"MASTER_ADDR": "127.0.0.1", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
            "cannot connect to each other",
        ),
    ],
    ids=str,
)
def test_contradictions(environ, word):
    messages = [
        message for cause, _, message in audited(environ) if cause == "variables-contradict"
    ]
    assert [message for message in messages if word in message]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_P2P_DISABLE", "1"),
        ("NCCL_ALGO", "Tree"),
        ("NCCL_PROTO", "LL128"),
        ("CUDA_LAUNCH_BLOCKING", "1"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
        ("TORCH_NCCL_BLOCKING_WAIT", "1"),
        ("NCCL_SHM_DISABLE", "1"),
        ("TORCH_NCCL_ENABLE_MONITORING", "0"),
        ("NCCL_NET_GDR_LEVEL", "LOC"),
    ],
)
def test_harmful_values_are_warnings(name, value):
    assert ("variable-harmful", Level.WARNING) in {
        (cause, level) for cause, level, _ in audited({name: value})
    }


def test_infiniband_turned_off_where_there_is_none_is_a_note():
    assert audited({"NCCL_IB_DISABLE": "1"}, AuditContext(infiniband=False))[0][1] is Level.NOTE
    assert audited({"NCCL_IB_DISABLE": "1"}, AuditContext(infiniband=True))[0][1] is Level.WARNING


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", False),
        ("NCCL_SOCKET_IFNAME", "=eth", True),
        ("NCCL_SOCKET_IFNAME", "ib", True),
        ("NCCL_SOCKET_IFNAME", "^ib", False),
        ("GLOO_SOCKET_IFNAME", "eth", True),
        ("GLOO_SOCKET_IFNAME", "eth0", False),
        ("NCCL_SOCKET_IFNAME", "ib,eth0", False),
    ],
)
def test_missing_interfaces(name, value, wrong):
    findings = audited({name: value}, AuditContext(interfaces=("eth0", "lo")))
    assert [cause for cause, _, _ in findings] == ["network-interface-wrong"] * wrong


def test_an_unknown_value_is_not_judged_but_the_name_is():
    setting = [
        VariableSetting(name=name, value=None, origin="a.sh", line=3)
        for name in ("NCCL_IB_DISABLE", "NCCL_TIMEOUT")
    ]
    (finding,) = audit(setting, AuditContext())
    assert finding.message.startswith("NCCL_TIMEOUT has no effect")


def test_secrets_are_not_shown():
    (finding,) = audit(from_environment({"NCCL_ACME_TOKEN": "hf_0123456789abcdef"}), AuditContext())
    assert "hf_0123" not in repr(finding)


def test_every_cause_of_the_rules_is_documented():
    rules = Path(__file__).parents[4] / "src/holdfast/host/variable_rules"
    causes = {
        name.replace("_", "-")
        for file in rules.glob("*.py")
        for name in re.findall(r"from holdfast\.causes\.\w+\.(\w+) import", file.read_text())
    }
    pages = {page.stem for page in (Path(__file__).parents[4] / "docs/causes").glob("*.md")}
    assert len(causes) > 8
    assert causes - pages == set()


def test_settings_of_one_command_do_not_contradict_those_of_another(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("NCCL_P2P_LEVEL=NVL ./a\nNCCL_P2P_DISABLE=1 ./b\n")
    assert "variables-contradict" not in {
        finding.cause for finding in audit(scan_folder([script]).settings, AuditContext())
    }
    script.write_text("export NCCL_P2P_LEVEL=NVL\nNCCL_P2P_DISABLE=1 ./b\n")
    assert "variables-contradict" in {
        finding.cause for finding in audit(scan_folder([script]).settings, AuditContext())
    }


def test_settings_of_one_container_do_not_contradict_those_of_another(tmp_path):
    file = tmp_path / "pods.yaml"
    one = "env:\n      - {name: NCCL_IB_DISABLE, value: '1'}\n"
    other = "      - {name: NCCL_IB_HCA, value: mlx5}\n"
    file.write_text(f"a:\n  - {one}  - env:\n{other}")
    assert "variables-contradict" not in {
        finding.cause for finding in audit(scan_folder([file]).settings, AuditContext())
    }
    file.write_text(f"a:\n  - {one}{other}")
    assert "variables-contradict" in {
        finding.cause for finding in audit(scan_folder([file]).settings, AuditContext())
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "NCCL_PROTO: null\nNCCL_ALGO: ~\nNCCL_IB_TIMEOUT:\n"),
        ("Dockerfile", "ARG NCCL_VERSION=2.1\nARG NCCL_TESTS_VERSION=2\n"),
        (
            "Dockerfile",
            "ENV NCCL_VERSION=2 NCCL_SOCKET_IFNAME=^docker,lo\nRUN make NCCL_HOME=/opt/nccl MPI=1\n",
        ),
        ("Dockerfile", "RUN export TORCH_CUDA_ARCH_LIST=9.0 && pip install x\n"),
        ("Dockerfile", "RUN echo NCCL_DEBUG=WARN >> /etc/nccl.conf\n"),
        ("a.sh", "CUDA_HOME=/usr/local/cuda\nNCCL_VERSION=2.1\nmake NCCL_HOME=/opt/nccl\n"),
        ("a.sh", "export NCCL_NET_GDR_LEVEL=5\n"),
    ],
)
def test_correct_settings_of_public_files(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert audit(scan_folder([tmp_path]).settings, AuditContext()) == ()

"""Variables that differ between hosts: which are reported, which may differ, and the message."""

from __future__ import annotations

from holdfast.core.findings import Level
from holdfast.host.variable_rules import host_differences

ALIKE = {
    "NCCL_DEBUG": "WARN",
    "NCCL_IB_TC": "106",
    "MASTER_ADDR": "a",
    "WORLD_SIZE": "4",
    "HOME": "/root",
}


def test_equal_hosts_have_no_finding():
    assert host_differences({"a": ALIKE, "b": ALIKE}) == ()
    assert host_differences({"a": ALIKE}) == ()
    assert host_differences({}) == ()


def test_variables_that_must_differ_are_not_reported():
    own = [
        {
            **ALIKE,
            "RANK": str(n),
            "CUDA_VISIBLE_DEVICES": str(n),
            "NCCL_DEBUG_FILE": f"/tmp/{n}",
            "HOSTNAME": f"n{n}",
            "SLURM_NODEID": str(n),
            "HOME": f"/home/{n}",
        }
        for n in range(3)
    ]
    assert host_differences({f"h{n}": environ for n, environ in enumerate(own)}) == ()


def test_the_deviating_host_is_named():
    hosts = {f"node{n}": ALIKE for n in range(7)} | {"node7": {**ALIKE, "NCCL_IB_TC": "0"}}
    (finding,) = host_differences(hosts)
    assert (finding.cause, finding.level) == ("variable-differs-between-hosts", Level.WARNING)
    assert finding.message == "NCCL_IB_TC differs between hosts: 0 on node7, but 106 on the other 7"
    assert finding.subject.host == "node7"
    assert finding.evidence[0].host == "node7"


def test_a_variable_set_on_one_host_only():
    (finding,) = host_differences({"a": {**ALIKE, "NCCL_IB_DISABLE": "1"}, "b": ALIKE})
    assert finding.level is Level.ERROR
    assert "1 on a, (not set) on b" in finding.message


def test_the_worst_comes_first_and_adapter_names_are_a_note():
    findings = host_differences(
        {
            "a": {**ALIKE, "NCCL_SOCKET_IFNAME": "eth0", "MASTER_ADDR": "a", "NCCL_IB_TC": "1"},
            "b": {**ALIKE, "NCCL_SOCKET_IFNAME": "ens3", "MASTER_ADDR": "b", "NCCL_IB_TC": "2"},
        }
    )
    assert [(finding.level, finding.message.split()[0]) for finding in findings] == [
        (Level.ERROR, "MASTER_ADDR"),
        (Level.WARNING, "NCCL_IB_TC"),
        (Level.NOTE, "NCCL_SOCKET_IFNAME"),
    ]


def test_the_message_for_many_hosts_is_short():
    (finding,) = host_differences({f"n{n}": {"NCCL_IB_TC": str(n)} for n in range(1024)})
    assert len(finding.message) < 300
    assert "and 1016 more" in finding.message


def test_secrets_are_not_shown():
    assert (
        host_differences({"a": {"NCCL_X_TOKEN": "s3cret"}, "b": {}})[0].message.count("s3cret") == 0
    )

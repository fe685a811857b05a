"""Variables that differ over hosts: which are named, which may differ, and how it is told."""

from __future__ import annotations

from holdfast.findings import Level
from holdfast.rules.environment import differences

ALIKE = {"NCCL_DEBUG": "WARN", "NCCL_IB_TC": "106", "MASTER_ADDR": "a", "WORLD_SIZE": "4", "HOME": "/root"}


def test_hosts_that_are_alike_get_no_finding():
    assert differences({"a": ALIKE, "b": ALIKE}) == ()
    assert differences({"a": ALIKE}) == ()
    assert differences({}) == ()


def test_what_has_to_differ_is_left_alone():
    own = [{**ALIKE, "RANK": str(n), "CUDA_VISIBLE_DEVICES": str(n), "NCCL_DEBUG_FILE": f"/tmp/{n}",
            "HOSTNAME": f"n{n}", "SLURM_NODEID": str(n), "HOME": f"/home/{n}"} for n in range(3)]  # fmt: skip
    assert differences({f"h{n}": environ for n, environ in enumerate(own)}) == ()


def test_the_odd_host_among_many_is_named():
    hosts = {f"node{n}": ALIKE for n in range(7)} | {"node7": {**ALIKE, "NCCL_IB_TC": "0"}}
    (claim,) = differences(hosts)
    assert (claim.cause, claim.level) == ("variable-differs-between-hosts", Level.WARNING)
    assert claim.message == "NCCL_IB_TC is not the same on all hosts: 0 on node7, and 106 on the other 7"
    assert claim.subject.host == "node7"
    assert claim.evidence[0].host == "node7"


def test_one_that_is_set_on_one_side_alone():
    (claim,) = differences({"a": {**ALIKE, "NCCL_IB_DISABLE": "1"}, "b": ALIKE})
    assert claim.level is Level.ERROR
    assert "1 on a, (not set) on b" in claim.message


def test_the_gravest_comes_first_and_names_of_cards_are_a_note():
    found = differences({
        "a": {**ALIKE, "NCCL_SOCKET_IFNAME": "eth0", "MASTER_ADDR": "a", "NCCL_IB_TC": "1"},
        "b": {**ALIKE, "NCCL_SOCKET_IFNAME": "ens3", "MASTER_ADDR": "b", "NCCL_IB_TC": "2"},
    })  # fmt: skip
    assert [(claim.level, claim.message.split()[0]) for claim in found] == [
        (Level.ERROR, "MASTER_ADDR"), (Level.WARNING, "NCCL_IB_TC"), (Level.NOTE, "NCCL_SOCKET_IFNAME")]  # fmt: skip


def test_many_hosts_make_a_sentence_that_can_be_read():
    (claim,) = differences({f"n{n}": {"NCCL_IB_TC": str(n)} for n in range(1024)})
    assert len(claim.message) < 300
    assert "and 1016 more" in claim.message


def test_secrets_are_not_shown():
    assert differences({"a": {"NCCL_X_TOKEN": "s3cret"}, "b": {}})[0].message.count("s3cret") == 0

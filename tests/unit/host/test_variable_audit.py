"""Audit the variables that trace files recorded, after a job is over."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.findings import Fact
from holdfast.host.environment import REDACTED, environment_facts
from holdfast.host.variable_audit import audit_recorded


def recorded(host, **variables):
    return tuple(replace(fact, host=host) for fact in environment_facts(variables))


def audit(*facts):
    return [
        (claim.cause, claim.subject.host)
        for claim in audit_recorded([fact for each in facts for fact in each])
    ]


def test_only_errors_are_reported_with_the_host():
    assert audit(recorded("a", NCCL_IB_DISABLE="true", NCCL_TIMEOUT="9")) == [
        ("variable-value-unusable", "a")
    ]
    assert audit(recorded("a", NCCL_DEBUG="WARN")) == []


def test_hosts_that_differ():
    facts = (recorded(host, WORLD_SIZE=size) for host, size in (("a", "4"), ("b", "4"), ("c", "2")))
    assert audit(*facts) == [("variable-differs-between-hosts", "c")]


def test_redacted_values_and_other_facts_are_not_judged():
    other = Fact(text="memory: 3 GiB = 1", origin="/proc/meminfo")
    hidden = Fact(
        text=f"NCCL_IB_DISABLE={REDACTED}", origin="environment variable NCCL_IB_DISABLE", host="a"
    )
    assert audit([other, hidden]) == []

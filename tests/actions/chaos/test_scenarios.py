"""The data of the scenarios: every name once, every fault and blow one that there is, peace without any fault."""

from __future__ import annotations

from collections import Counter

from holdfast.actions.chaos import inside, network, outside, remedies, shortages
from holdfast.actions.chaos.blows import BLOWS
from holdfast.actions.chaos.scenarios import SCENARIOS
from holdfast.runtime.faults import parse

SOURCES = (shortages, remedies, network, outside, inside)


def test_every_name_is_of_one_scenario():
    names = Counter(each.name for source in SOURCES for each in source.scenarios())
    assert [name for name, times in names.items() if times > 1] == []
    assert len(SCENARIOS) == len(names)


def test_faults_and_blows_exist():
    for each in SCENARIOS.values():
        for text in each.inject:
            assert parse(text), each.name
        assert {blow.kind for blow in each.blows} <= set(BLOWS), each.name
        assert each.inject or each.blows, each.name


def test_every_fault_of_a_rank_is_at_every_moment_in_every_mode():
    played = {(each.mode, each.fault, each.moment) for each in SCENARIOS.values() if each.hosts == 1}
    for mode in ("ddp", "fsdp2", "zero2"):
        assert {(mode, fault, moment) for fault in inside.INSIDE for moment in inside.MOMENTS} <= played


def test_a_job_in_peace_is_not_hurt():
    for each in SCENARIOS.values():
        calm = each.calm
        assert (calm.inject, calm.blows, calm.causes, calm.disk_mib, calm.options) == ((), (), frozenset(), 0, ())
        assert (calm.mode, calm.ranks, calm.trainer) == (each.mode, each.ranks, each.peace)

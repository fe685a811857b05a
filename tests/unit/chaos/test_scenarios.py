"""Scenario data: unique names, existing faults, and undisturbed runs without faults."""

from __future__ import annotations

from collections import Counter

from holdfast.chaos import (
    external_scenarios,
    network_faults,
    rank_faults,
    recovery_scenarios,
    resource_scenarios,
)
from holdfast.chaos.external_faults import EXTERNAL_FAULTS
from holdfast.chaos.scenarios import SCENARIOS
from holdfast.recorder.faults import parse_fault

SOURCES = (resource_scenarios, recovery_scenarios, network_faults, external_scenarios, rank_faults)


def test_names_are_unique():
    names = Counter(each.name for source in SOURCES for each in source.scenarios())
    assert [name for name, times in names.items() if times > 1] == []
    assert len(SCENARIOS) == len(names)


def test_faults_exist():
    for each in SCENARIOS.values():
        for text in each.inject:
            assert parse_fault(text), each.name
        assert {fault.kind for fault in each.external_faults} <= set(EXTERNAL_FAULTS), each.name
        assert each.inject or each.external_faults, each.name


def test_rank_faults_cover_all_moments_and_modes():
    observed = {
        (each.mode, each.fault, each.moment) for each in SCENARIOS.values() if each.hosts == 1
    }
    for mode in ("ddp", "fsdp2", "zero2"):
        assert {
            (mode, fault, moment)
            for fault in rank_faults.INJECTED_FAULTS
            for moment in rank_faults.MOMENTS
        } <= observed


def test_undisturbed_job_has_no_faults():
    for each in SCENARIOS.values():
        plain = each.undisturbed
        assert (
            plain.inject,
            plain.external_faults,
            plain.causes,
            plain.disk_mib,
            plain.options,
        ) == (
            (),
            (),
            frozenset(),
            0,
            (),
        )
        assert (plain.mode, plain.ranks, plain.trainer) == (
            each.mode,
            each.ranks,
            each.undisturbed_options,
        )

"""The variable table: complete rows, and suggestions for misspelled names."""

from __future__ import annotations

import pytest

from holdfast.core.variable_table import (
    ValueForm,
    VariableStatus,
    closest_name,
    is_relevant,
    parse_release,
    variable_entries,
)

ESSENTIAL = """
NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_TC
NCCL_IB_TIMEOUT NCCL_NET NCCL_NET_PLUGIN NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_NET_GDR_LEVEL NCCL_ALGO NCCL_PROTO
NCCL_NVLS_ENABLE NCCL_CUMEM_ENABLE NCCL_MAX_CTAS NCCL_CROSS_NIC TORCH_NCCL_ASYNC_ERROR_HANDLING
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_FR_BUFFER_SIZE TORCH_FR_DUMP_TEMP_FILE TORCH_DISTRIBUTED_DEBUG
TORCH_CPP_LOG_LEVEL GLOO_SOCKET_IFNAME CUDA_DEVICE_MAX_CONNECTIONS PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
"""


def test_every_row_is_complete():
    assert len(variable_entries()) == 606
    for row in variable_entries().values():
        assert row.effect, row.name
        assert row.evidence, row.name
        words = row.form in (ValueForm.WORDS, ValueForm.ZERO_ONE, ValueForm.EXACT, ValueForm.LIST)
        assert row.choices or not words, row.name


def test_replacements_are_active():
    rows = variable_entries()
    for row in rows.values():
        if row.replaced_by in rows:
            assert rows[row.replaced_by].status not in (
                VariableStatus.NEVER_READ,
                VariableStatus.REMOVED,
            ), row.name


def test_essential_variables_are_active():
    rows = variable_entries()
    assert [
        name
        for name in ESSENTIAL.split()
        if rows[name].status not in (VariableStatus.ACTIVE, VariableStatus.ALIAS)
    ] == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("2.30.7", (2, 30, 7)),
        ("2.13.0+cpu", (2, 13, 0)),
        ("<=2.1", (2, 1)),
        ("2.8-2.9", (2, 8)),
        ("", ()),
        ("git", ()),
    ],
)
def test_releases(text, numbers):
    assert parse_release(text) == numbers


def test_first_and_gone_releases():
    rows = variable_entries()
    assert rows["TORCH_FR_BUFFER_SIZE"].first == (2, 8)
    assert rows["NCCL_DEBUG"].first == ()
    assert rows["NCCL_TREE_THRESHOLD"].gone == (2, 5, 6)
    assert rows["ENABLE_NCCL_HEALTH_CHECK"].gone == (2, 5)


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "HOME", "PATH", "HCCL_CONNECT_TIMEOUT", "TORCH_HOME", "NCCL_ACME", "N"]
)
def test_names_without_suggestion(name):
    assert closest_name(name) == ""


@pytest.mark.parametrize(
    ("name", "yes"), [("NCCL_ANYTHING", True), ("NCLL_DEBUG", True), ("HOME", False)]
)
def test_is_relevant(name, yes):
    assert is_relevant(name) is yes

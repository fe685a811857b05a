"""The table of variables: every row is whole, and names that are misspelt find the one that was meant."""

from __future__ import annotations

import pytest

from holdfast.variables import Form, Status, concerns, meant, release, table

MATTER_MOST = """
NCCL_DEBUG NCCL_DEBUG_SUBSYS NCCL_DEBUG_FILE NCCL_SOCKET_IFNAME NCCL_IB_HCA NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_TC
NCCL_IB_TIMEOUT NCCL_NET NCCL_NET_PLUGIN NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_NET_GDR_LEVEL NCCL_ALGO NCCL_PROTO
NCCL_NVLS_ENABLE NCCL_CUMEM_ENABLE NCCL_MAX_CTAS NCCL_CROSS_NIC TORCH_NCCL_ASYNC_ERROR_HANDLING
TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC TORCH_FR_BUFFER_SIZE TORCH_FR_DUMP_TEMP_FILE TORCH_DISTRIBUTED_DEBUG
TORCH_CPP_LOG_LEVEL GLOO_SOCKET_IFNAME CUDA_DEVICE_MAX_CONNECTIONS PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF
"""


def test_the_table_is_whole():
    assert len(table()) == 606
    for row in table().values():
        assert row.effect, row.name
        assert row.evidence, row.name
        words = row.form in (Form.WORDS, Form.ZERO_ONE, Form.EXACT, Form.LIST)
        assert row.choices or not words, row.name


def test_what_replaces_a_variable_is_read_itself():
    rows = table()
    for row in rows.values():
        if row.replaced_by in rows:
            assert rows[row.replaced_by].status not in (Status.NEVER_READ, Status.REMOVED), row.name


def test_those_that_matter_most_are_there_and_active():
    rows = table()
    assert [name for name in MATTER_MOST.split() if rows[name].status not in (Status.ACTIVE, Status.ALIAS)] == []


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2.30.7", (2, 30, 7)), ("2.13.0+cpu", (2, 13, 0)), ("<=2.1", (2, 1)), ("2.8-2.9", (2, 8)), ("", ()), ("git", ())],
)
def test_releases(text, numbers):
    assert release(text) == numbers


def test_a_bracket_of_releases_is_read_with_care():
    rows = table()
    assert rows["TORCH_FR_BUFFER_SIZE"].first == (2, 8)
    assert rows["NCCL_DEBUG"].first == ()
    assert rows["NCCL_TREE_THRESHOLD"].gone == (2, 5, 6)
    assert rows["ENABLE_NCCL_HEALTH_CHECK"].gone == (2, 5)


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "HOME", "PATH", "HCCL_CONNECT_TIMEOUT", "TORCH_HOME", "NCCL_ACME", "N"])
def test_these_mean_nothing_else(name):
    assert meant(name) == ""


@pytest.mark.parametrize(("name", "yes"), [("NCCL_ANYTHING", True), ("NCLL_DEBUG", True), ("HOME", False)])
def test_what_concerns_us(name, yes):
    assert concerns(name) is yes

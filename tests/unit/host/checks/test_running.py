"""A check that fails or hangs is Unknown and does not affect the others."""

import os
import time

import pytest

from holdfast.core.errors import UnknownName
from holdfast.core.findings import Unknown
from holdfast.host.checks import CHECKS, Check, CheckContext, select_checks, unknown_reasons
from holdfast.host.checks.runner import run_checks
from holdfast.host.checks.system.shared_memory import SharedMemoryResult
from holdfast.host.checks.system.swap import SwapResult
from tests.unit.host.checks.trees import host


def test_a_subprocess_returns_the_same_result():
    checks = [
        Check("shared-memory", "system", "", in_subprocess=in_subprocess, limit_s=20)
        for in_subprocess in (True, False)
    ]
    sizes = [
        run_checks(CheckContext(), [check])["shared-memory"].result.size_bytes for check in checks
    ]
    assert sizes[0] == sizes[1] > 0


def test_a_check_that_times_out_is_unknown_and_abandoned():
    start = time.monotonic()
    (found,) = run_checks(
        CheckContext(), [Check("shared-memory", "system", "", in_subprocess=True, limit_s=0.01)]
    ).values()
    assert found.result.why.startswith("the check shared-memory: ")
    assert found.result.why.endswith("did not answer within 0.01 s")
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("in_subprocess", [False, True])
def test_a_check_that_fails_is_unknown(in_subprocess):
    broken = CheckContext(root="\0")
    (found,) = run_checks(
        broken, [Check("shared-memory", "system", "", in_subprocess=in_subprocess, limit_s=20)]
    ).values()
    assert isinstance(found.result, Unknown)
    assert "embedded null byte" in found.result.why


def test_nested_unknown_reasons():
    result = SharedMemoryResult(size_bytes=Unknown("a"), free_bytes=7)
    assert unknown_reasons((result, (Unknown("b"), 3))) == ("a", "b")


def test_names():
    assert [check.name for check in select_checks(())] == list(CHECKS)
    assert [check.name for check in select_checks(("shared-memory",))] == ["shared-memory"]
    with pytest.raises(UnknownName, match="shared-memory"):
        select_checks(("shared_memory",))


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
def test_every_check_returns_facts_about_this_host(check):
    result = check.run(CheckContext())
    assert isinstance(result, check.result_type)
    assert result.absent or result.facts()


def test_a_hanging_check_is_unknown_and_the_others_complete(tmp_path):
    """A read blocks forever, as on an unreachable file server: here, of a pipe without a writer."""
    context = host(tmp_path, within_s=0.5)
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/hosts")
    start = time.monotonic()
    runs = run_checks(context, [CHECKS["hosts-file"], CHECKS["swap"], CHECKS["interfaces"]])
    assert time.monotonic() - start < 5
    assert list(runs) == ["hosts-file", "swap", "interfaces"]
    assert runs["hosts-file"].result == Unknown("timed out after 0.5 s")
    assert isinstance(runs["swap"].result, SwapResult)

"""The gate of one host: compares with the first check, rechecks problems, and never takes long."""

import pytest

from holdfast.host.checks import CheckContext
from holdfast.launcher.host_gate import RECHECK_PAUSE_S, HostGate
from tests.unit.host.gpus.recorded import answer, gpu, tree


@pytest.fixture
def host(tmp_path):
    """Return a gate on a recorded host, a function that sets the driver's answer, and the pauses."""
    pauses = []
    gate = HostGate(CheckContext(root=tree(tmp_path, gpu())), pauses.append)
    return (
        gate,
        lambda **fault: (tmp_path / "nvidia-smi.xml").write_bytes(answer(gpu(**fault))),
        pauses,
    )


def test_a_healthy_host_passes_after_one_check(host):
    gate, _, pauses = host
    assert gate.check().refused == ()
    assert pauses == []


def test_a_new_problem_is_checked_twice(host):
    gate, set_faults, pauses = host
    gate.check()
    set_faults(errors=2)
    (finding,) = gate.check().refused
    assert "2 uncorrectable memory errors since the job began" in finding.message
    assert pauses == [RECHECK_PAUSE_S]


def test_a_temporary_problem_does_not_exclude_the_host(tmp_path):
    gate = HostGate(
        CheckContext(root=tree(tmp_path, gpu(recovery="Reset"))),
        lambda _: (tmp_path / "nvidia-smi.xml").write_bytes(answer(gpu())),
    )
    assert gate.check().refused == ()


def test_results_of_early_checks_are_used(host):
    gate, set_faults, _ = host
    gate.check()
    set_faults(failed="Yes")
    gate.begin()
    assert [finding.cause for finding in gate.check().refused] == ["gpu-memory-worn"]


def test_a_check_that_raises_does_not_exclude_the_host(host):
    gate, _, _ = host
    gate.check()
    (gate._context.path("/nvidia-smi.xml")).write_bytes(b"<no xml")
    assert gate.check().refused == ()

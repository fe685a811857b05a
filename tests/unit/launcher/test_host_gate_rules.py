"""Host gate rules: a host is excluded only if the job would certainly fail on it."""

import itertools

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext
from holdfast.host.checks.devices.gpu_health import GpuHealthResult, inspect
from holdfast.host.checks.system.memory import MemoryResult
from holdfast.host.gpus import NoDriver
from holdfast.launcher.host_gate_rules import MIN_FREE_BYTES, unfit_reasons
from tests.unit.host.gpus.recorded import gpu, tree


@pytest.fixture
def gpus(tmp_path):
    numbers = itertools.count()

    def seen(*each):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return {"gpu-health": inspect(CheckContext(root=tree(folder, *each)))}

    return seen


def causes(now, first=None, **environ):
    return [
        claim.cause for claim in unfit_reasons(now, first or {}, CheckContext(environ=environ), "a")
    ]


def test_a_healthy_host_is_not_excluded(gpus):
    assert causes(gpus(gpu(), gpu(bus="2B"))) == []
    assert causes({"gpu-health": GpuHealthResult(absent="no NVIDIA GPU")}) == []


@pytest.mark.parametrize(
    "fault",
    [
        {"hot": "Active"},
        {"width": 8},
        {"pending": "Yes"},
        {"errors": 3},
        {"ever": 3},
        {"ecc": "Disabled"},
    ],
)
def test_possible_or_earlier_problems_do_not_exclude_the_host(gpus, fault):
    seen = gpus(gpu(**fault))
    assert causes(seen) == []
    assert causes(seen, seen) == []


def test_a_gpu_that_needs_a_reset_or_replacement_excludes_the_host(gpus):
    assert causes(gpus(gpu(recovery="Reset"))) == ["gpu-fell-off-bus-xid-ecc"]
    assert causes(gpus(gpu(failed="Yes"))) == ["gpu-memory-worn"]


def test_a_gpu_outside_of_the_job_does_not_exclude_the_host(gpus):
    broken = gpus(gpu(), gpu(bus="2B", uuid="22222222-bbbb", failed="Yes"))
    assert causes(broken) == ["gpu-memory-worn"]
    assert causes(broken, CUDA_VISIBLE_DEVICES="0") == []
    assert causes(broken, CUDA_VISIBLE_DEVICES="") == []


def test_a_problem_since_the_job_began_excludes_the_host(gpus):
    first = gpus(gpu(errors=3), gpu(bus="2B", uuid="22222222-bbbb"))
    assert causes(gpus(gpu(errors=5), gpu(bus="2B", uuid="22222222-bbbb")), first) == [
        "gpu-fell-off-bus-xid-ecc"
    ]
    assert causes(gpus(gpu(errors=3)), first) == ["gpu-fell-off-bus-xid-ecc"]  # one GPU is missing


def test_an_unresponsive_driver_excludes_a_host_with_gpus(gpus):
    stuck = {"gpu-health": GpuHealthResult(unanswered=Unknown("late"), stuck=True)}
    assert causes(stuck) == []
    assert causes(stuck, gpus(gpu())) == ["gpu-fell-off-bus-xid-ecc"]


def test_unknown_values_do_not_exclude_the_host():
    assert causes({"gpu-health": GpuHealthResult(unanswered=NoDriver("no driver"))}) == []
    assert causes({"memory": MemoryResult(total=Unknown("?"), available=Unknown("?"))}) == []


def test_a_host_without_free_memory_is_excluded():
    assert causes({"memory": MemoryResult(total=1 << 34, available=MIN_FREE_BYTES - 1)}) == [
        "host-oom-killed"
    ]
    assert causes({"memory": MemoryResult(total=1 << 34, available=MIN_FREE_BYTES)}) == []

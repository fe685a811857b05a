"""Who is kept out of a start: only where the job would fail for certain."""

import itertools

import pytest

from holdfast.facts.checks import Place
from holdfast.facts.checks.gpu_health import GpuHealth, look
from holdfast.facts.checks.memory import Memory
from holdfast.facts.gpus import NoDriver
from holdfast.findings import Unknown
from holdfast.rules.gate import LEAST_ROOM, unfit
from tests.facts.gpus.recorded import gpu, tree


@pytest.fixture
def gpus(tmp_path):
    numbers = itertools.count()

    def seen(*each):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return {"gpu-health": look(Place(root=tree(folder, *each)))}

    return seen


def causes(now, first=None, **environ):
    return [claim.cause for claim in unfit(now, first or {}, Place(environ=environ), "a")]


def test_a_sound_host_is_let_in(gpus):
    assert causes(gpus(gpu(), gpu(bus="2B"))) == []
    assert causes({"gpu-health": GpuHealth(absent="no NVIDIA GPU")}) == []


@pytest.mark.parametrize(
    "fault", [{"hot": "Active"}, {"width": 8}, {"pending": "Yes"}, {"errors": 3}, {"ever": 3}, {"ecc": "Disabled"}]
)
def test_what_only_may_do_harm_or_was_so_before_lets_it_in(gpus, fault):
    seen = gpus(gpu(**fault))
    assert causes(seen) == []
    assert causes(seen, seen) == []


def test_a_gpu_that_has_to_be_reset_or_exchanged_keeps_the_host_out(gpus):
    assert causes(gpus(gpu(recovery="Reset"))) == ["gpu-fell-off-bus-xid-ecc"]
    assert causes(gpus(gpu(failed="Yes"))) == ["gpu-memory-worn"]


def test_a_gpu_that_the_job_does_not_use_does_not(gpus):
    broken = gpus(gpu(), gpu(bus="2B", uuid="22222222-bbbb", failed="Yes"))
    assert causes(broken) == ["gpu-memory-worn"]
    assert causes(broken, CUDA_VISIBLE_DEVICES="0") == []
    assert causes(broken, CUDA_VISIBLE_DEVICES="") == []


def test_what_became_worse_since_the_job_began_does(gpus):
    first = gpus(gpu(errors=3), gpu(bus="2B", uuid="22222222-bbbb"))
    assert causes(gpus(gpu(errors=5), gpu(bus="2B", uuid="22222222-bbbb")), first) == ["gpu-fell-off-bus-xid-ecc"]
    assert causes(gpus(gpu(errors=3)), first) == ["gpu-fell-off-bus-xid-ecc"]  # one is gone


def test_a_driver_that_stands_keeps_out_where_there_were_gpus(gpus):
    stuck = {"gpu-health": GpuHealth(unanswered=Unknown("late"), stuck=True)}
    assert causes(stuck) == []
    assert causes(stuck, gpus(gpu())) == ["gpu-fell-off-bus-xid-ecc"]


def test_what_is_unknown_keeps_nobody_out():
    assert causes({"gpu-health": GpuHealth(unanswered=NoDriver("no driver"))}) == []
    assert causes({"memory": Memory(total=Unknown("?"), available=Unknown("?"))}) == []


def test_a_host_without_memory():
    assert causes({"memory": Memory(total=1 << 34, available=LEAST_ROOM - 1)}) == ["host-oom-killed"]
    assert causes({"memory": Memory(total=1 << 34, available=LEAST_ROOM)}) == []

"""How GPUs are joined: which links are missing, and which pairs cannot reach each other."""

from holdfast.facts.checks import CHECKS, Place
from holdfast.facts.checks.gpu_health import GpuHealth
from holdfast.facts.gpus import Answer, Gpu, NvLink, Pair
from holdfast.findings import Level, Unknown
from holdfast.rules.machine import judge


def judged(links, pairs=()):
    gpus = tuple(
        Gpu(
            index=n,
            name="a",
            uuid="",
            bus="",
            memory_bytes=1,
            memory_used_bytes=0,
            throttled=(),
            nvlinks=tuple(map(NvLink, up)) if isinstance(up, tuple) else up,
        )
        for n, up in enumerate(links)
    )
    seen = GpuHealth(answer=Answer(source="NVML", driver="1", cuda="1", gpus=gpus, pairs=pairs))
    return judge(CHECKS["gpu-health"], seen, Place(), "a")


UP = (True,) * 4


def test_all_up():
    assert judged([UP, UP], (Pair(0, 1, "NVLink", "OK"),)) == ()


def test_a_link_that_is_down():
    (found,) = judged([UP, (True, False, True, True)])
    assert (found.cause, found.subject.gpu, found.level) == ("gpu-link-degraded", 1, Level.WARNING)
    assert "3 of 4 NVLinks up; down: 1" in found.message


def test_a_gpu_with_fewer_links_than_the_others():
    (found,) = judged([UP, UP[:2]])
    assert "GPU 1 has fewer NVLinks than the other GPUs of this host (2, and 4)" in found.message


def test_a_gpu_that_has_lost_all_its_links():
    (found,) = judged([UP, (False,) * 4, UP])
    assert "GPU 1 has fewer NVLinks than the other GPUs of this host (0, and 4)" in found.message


def test_bridges_between_some_pairs_alone_are_no_fault():
    assert judged([UP, UP, (False,) * 4, (False,) * 4], (Pair(0, 1, "NVLink", "OK"),)) == ()


def test_the_matrix_is_told():
    pairs = (Pair(0, 1, "PIX", "OK"), Pair(0, 2, "SYS", "CNS"), Pair(1, 2, "SYS", "CNS"))
    gpus = tuple(Gpu(index=n, name="a", uuid="", bus="", memory_bytes=1, memory_used_bytes=0) for n in range(3))
    seen = GpuHealth(answer=Answer(source="NVML", driver="1", cuda="1", gpus=gpus, pairs=pairs))
    told = [fact.text for fact in seen.facts()]
    assert "GPU 0 to GPU: 1 PIX, 2 SYS (no peer access: CNS)" in told
    assert "GPU 2 to GPU: 0 SYS (no peer access: CNS), 1 SYS (no peer access: CNS)" in told


def test_none_at_all_is_no_fault():
    assert judged([None, None], (Pair(0, 1, "SYS", "CNS"),)) == ()
    assert judged([(False,) * 4] * 2) == ()  # without a bridge between them
    assert judged([Unknown("x"), None], Unknown("y")) == ()


def test_pairs_that_cannot_reach_each_other_though_others_can():
    pairs = (Pair(0, 1, "PIX", "OK"), Pair(0, 2, "PIX", "CNS"), Pair(1, 2, "SYS", "CNS"))
    (found,) = judged([None] * 3, pairs)
    assert "GPUs 0 and 2 cannot reach" in found.message


def test_settings_of_all_gpus_are_said_once():
    gpus = tuple(
        Gpu(index=n, name="a", uuid="", bus="", memory_bytes=1, memory_used_bytes=0, persistence=n == 3)
        for n in range(8)
    )
    seen = GpuHealth(answer=Answer(source="NVML", driver="1", cuda="1", gpus=gpus))
    (found,) = judge(CHECKS["gpu-health"], seen, Place(), "a")
    assert found.message.startswith("GPUs 0-2,4-7 are not in persistence mode")

"""Are the GPUs fit: cool, at full speed, without memory errors, with all their links?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.facts.checks import Place, fact
from holdfast.facts.checks.gpu_health import GpuHealth, told_of
from holdfast.facts.gpus import Answer, Gpu, Pair
from holdfast.findings import Fact, Finding, Level, Subject, finding
from holdfast.report.ranksets import compress_ranks
from holdfast.rules.causes import by_name

#: Words of the driver for clocks lowered by heat, by the power supply, and by the hardware without a further word.
_HEAT = ("hw_thermal_slowdown", "sw_thermal_slowdown")
_POWER = ("hw_power_brake_slowdown",)
_UNNAMED = ("hw_slowdown",)
#: Degrees below the threshold at which a GPU is told to be warm; it stands idle before a job, or should.
_NEAR_C = 5
#: A limit below this part of the default was set by somebody, and makes this GPU the slow one.
_POWER_PART = 0.95
#: Performance states up to which the PCIe link should run at its full speed; idle GPUs slow it down.
_BUSY = 2


def judge(seen: GpuHealth, _place: Place) -> Iterator[Finding]:
    """One GPU after the other, then how they are joined."""
    if seen.answer is None:
        return
    for gpu in seen.answer.gpus:
        told = (told_of(gpu, seen.answer.source),)
        for claims in (_heat, _power, _memory, _links):
            yield from claims(gpu, told)
    yield from _settings(seen.answer)
    yield from _fabric(seen.answer)
    yield from _peers(seen, seen.answer)
    yield from _uneven(seen, seen.answer)


def _heat(gpu: Gpu, told: tuple[Fact, ...]) -> Iterator[Finding]:
    cause, subject = by_name("gpu-throttled"), Subject(gpu=gpu.index)
    reasons = gpu.throttled if isinstance(gpu.throttled, tuple) else ()
    hot = f" at {gpu.temperature_c} °C" if isinstance(gpu.temperature_c, int) else ""
    lowered = [word for word in reasons if word in _HEAT]
    if lowered:
        yield finding(
            cause,
            f"GPU {gpu.index} is too hot{hot}, and its clocks are lowered ({', '.join(lowered)}): all "
            "ranks will wait for it",
            level=Level.WARNING,
            subject=subject,
            evidence=told,
        )
    left_c = _left_c(gpu)
    if not lowered and left_c is not None and left_c <= _NEAR_C:
        yield finding(
            cause,
            f"GPU {gpu.index} is{hot} {left_c} degrees below the temperature at which its clocks are lowered",
            level=Level.WARNING,
            subject=subject,
            evidence=told,
            confidence=0.7,
        )
    power = [word for word in reasons if word in _POWER] or [
        word for word in reasons if word in _UNNAMED and not lowered
    ]
    if power:
        yield finding(
            cause,
            f"GPU {gpu.index} is slowed down by its hardware ({', '.join(power)}): its power or "
            "cooling does not suffice",
            level=Level.WARNING,
            subject=subject,
            evidence=told,
        )


def _left_c(gpu: Gpu) -> int | None:
    """Degrees until the clocks are lowered, as the driver tells them, or from its threshold."""
    if isinstance(gpu.margin_c, int):
        return gpu.margin_c
    if isinstance(gpu.temperature_c, int) and isinstance(gpu.slowdown_c, int):
        return gpu.slowdown_c - gpu.temperature_c
    return None


def _power(gpu: Gpu, told: tuple[Fact, ...]) -> Iterator[Finding]:
    limit, default = gpu.power_limit_w, gpu.power_default_w
    if isinstance(limit, float) and isinstance(default, float) and limit < _POWER_PART * default:
        yield finding(
            by_name("gpu-settings"),
            f"GPU {gpu.index} may take {limit:g} W where {default:g} W is usual: it will be slower than its neighbours",
            level=Level.WARNING,
            subject=Subject(gpu=gpu.index),
            confidence=0.8,
            evidence=(*told, fact(f"GPU {gpu.index}: usual power limit", f"{default:g} W", "NVML")),
        )


def _memory(gpu: Gpu, told: tuple[Fact, ...]) -> Iterator[Finding]:
    subject, worn = Subject(gpu=gpu.index), by_name("gpu-memory-worn")
    if isinstance(gpu.ecc_errors, int) and gpu.ecc_errors:
        yield finding(
            by_name("gpu-fell-off-bus-xid-ecc"),
            f"GPU {gpu.index} has had {gpu.ecc_errors} uncorrectable memory "
            "errors since its driver was loaded: a process on it may die, or have died",
            subject=subject,
            evidence=told,
        )
    if gpu.rows_failed is True:
        yield finding(
            worn,
            f"GPU {gpu.index} could not replace a bad row of its memory: it has to be exchanged",
            subject=subject,
            evidence=told,
        )
    if gpu.rows_pending is True or gpu.pages_pending is True:
        yield finding(
            worn,
            f"GPU {gpu.index} has bad memory that is taken out of use only when the GPU is reset",
            level=Level.WARNING,
            subject=subject,
            evidence=told,
        )
    if isinstance(gpu.recovery, str) and gpu.recovery != "none":
        yield finding(
            by_name("gpu-fell-off-bus-xid-ecc"),
            f"the driver asks for a {gpu.recovery} of GPU {gpu.index}",
            subject=subject,
            evidence=told,
        )
    if isinstance(gpu.ecc_ever_errors, int) and gpu.ecc_ever_errors and not gpu.ecc_errors:
        yield finding(
            worn,
            f"GPU {gpu.index} has had {gpu.ecc_ever_errors} uncorrectable memory errors in its life, "
            "none since its driver was loaded",
            level=Level.NOTE,
            subject=subject,
            evidence=told,
        )


def _links(gpu: Gpu, told: tuple[Fact, ...]) -> Iterator[Finding]:
    cause, subject = by_name("gpu-link-degraded"), Subject(gpu=gpu.index)
    width, most = gpu.pcie_width, gpu.pcie_width_most
    if isinstance(width, int) and isinstance(most, int) and width < most:
        yield finding(
            cause,
            f"GPU {gpu.index} has {width} of {most} PCIe lanes: transfers to the host and to network "
            "adapters take so much longer",
            level=Level.WARNING,
            subject=subject,
            evidence=told,
        )
    gen, gen_most = gpu.pcie_gen, gpu.pcie_gen_most
    busy = isinstance(gpu.performance, int) and gpu.performance <= _BUSY
    if busy and isinstance(gen, int) and isinstance(gen_most, int) and gen < gen_most:
        yield finding(
            cause,
            f"GPU {gpu.index} is at work, and its PCIe link runs at generation {gen} of {gen_most}",
            level=Level.NOTE,
            subject=subject,
            evidence=told,
            confidence=0.5,
        )
    links = _up(gpu)
    if any(links) and not all(links):
        down = ", ".join(str(number) for number, up in enumerate(links) if not up)
        yield finding(
            cause,
            f"GPU {gpu.index} has {sum(links)} of {len(links)} NVLinks up; down: {down}",
            level=Level.WARNING,
            subject=subject,
            evidence=told,
            confidence=0.7,
        )
    if isinstance(gpu.nvlink_errors, int) and gpu.nvlink_errors:
        yield finding(
            cause,
            f"the NVLinks of GPU {gpu.index} have had {gpu.nvlink_errors} errors or repeats since its "
            "driver was loaded",
            level=Level.NOTE,
            subject=subject,
            evidence=told,
            confidence=0.5,
        )


def _settings(answer: Answer) -> Iterator[Finding]:
    """What is usually set alike on all GPUs of a host, said once."""
    cause = by_name("gpu-settings")
    lax = [gpu for gpu in answer.gpus if gpu.persistence is False]
    if lax:
        yield finding(
            cause,
            f"{_numbers(lax)} not in persistence mode: the driver lets go of it between jobs, and each "
            "start takes seconds longer",
            level=Level.NOTE,
            evidence=tuple(told_of(gpu, answer.source) for gpu in lax),
        )
    unsafe = [gpu for gpu in answer.gpus if gpu.ecc is False]
    if unsafe:
        yield finding(
            cause,
            f"{_numbers(unsafe)} without error correction, which is switched off: a flipped bit goes unseen",
            level=Level.NOTE,
            evidence=tuple(told_of(gpu, answer.source) for gpu in unsafe),
        )


def _up(gpu: Gpu) -> tuple[bool, ...]:
    """Of each of its NVLinks whether it is up; none where the driver does not tell."""
    return tuple(link.up for link in gpu.nvlinks) if isinstance(gpu.nvlinks, tuple) else ()


def _numbers(gpus: Sequence[Gpu]) -> str:
    listed = compress_ranks([gpu.index for gpu in gpus])
    return f"GPU {listed} is" if len(gpus) == 1 else f"GPUs {listed} are"


def _fabric(answer: Answer) -> Iterator[Finding]:
    """On NVSwitch machines CUDA does not start before the Fabric Manager has joined each GPU to the fabric."""
    waiting = [gpu for gpu in answer.gpus if gpu.fabric in ("not started", "in progress")]
    if waiting:
        yield finding(
            by_name("cuda-driver-mismatch"),
            f"{_numbers(waiting)} not yet in the NVSwitch fabric "
            f"({waiting[0].fabric}): CUDA says `system not yet initialized` until the Fabric Manager has done it",
            evidence=tuple(fact(f"GPU {gpu.index}: fabric", gpu.fabric, answer.source) for gpu in waiting),
        )


def _peers(seen: GpuHealth, answer: Answer) -> Iterator[Finding]:
    """GPUs joined by NVLink that may not read each other, or some pairs that may and others of the same kind not."""
    pairs = answer.pairs if isinstance(answer.pairs, tuple) else ()
    allowed = {pair.way for pair in pairs if pair.peer == "OK"}
    odd = [pair for pair in pairs if pair.peer not in ("OK", "U") and (pair.way == "NVLink" or pair.way in allowed)]
    if odd:
        yield finding(
            by_name("gpu-link-degraded"),
            f"{_shown(odd)} cannot reach each other's memory directly, though other "
            "pairs that are joined alike can: their traffic goes through the host",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.7,
        )


def _uneven(seen: GpuHealth, answer: Answer) -> Iterator[Finding]:
    """One GPU with fewer NVLinks up than the others has lost some whose state is not even told, or all of them.

    Where as many have none as have some, they were never joined: bridges join two of four.
    """
    links = {gpu.index: _up(gpu) for gpu in answer.gpus if isinstance(gpu.nvlinks, tuple)}
    most = max(map(sum, links.values()), default=0)
    without = [index for index, up in links.items() if not any(up)]
    fewer = [index for index, up in links.items() if any(up) and all(up) and sum(up) < most]
    fewer = sorted(fewer + (without if 2 * len(without) < len(links) else []))
    if fewer:
        yield finding(
            by_name("gpu-link-degraded"),
            f"GPU {', '.join(map(str, fewer))} has fewer NVLinks than the other "
            f"GPUs of this host ({sum(links[fewer[0]])}, and {most})",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.6,
        )


def _shown(pairs: list[Pair]) -> str:
    listed = ", ".join(f"{pair.one} and {pair.other}" for pair in pairs[:4])
    return f"GPUs {listed}" + (f" and {len(pairs) - 4} more pairs" if len(pairs) > 4 else "")

"""Which host may not take part in a start: one on which the job would fail for certain, or that has become worse.

Far stricter than `check`: what only may do harm, and what was so when the job began and did not stop it, lets it in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from holdfast.facts.checks import Place, Seen
from holdfast.facts.checks.gpu_health import GpuHealth, told_of
from holdfast.facts.checks.infiniband import InfiniBand, told
from holdfast.facts.checks.memory import Memory
from holdfast.facts.gpus import Gpu
from holdfast.facts.gpus.visible import visible
from holdfast.findings import Finding, Subject, finding
from holdfast.rules.causes import by_name

#: The checks that are asked: each takes under a second where nothing is wrong.
ASKED = ("gpu-health", "infiniband", "memory")
_MIB = 1 << 20
#: Room in which not even an interpreter with torch starts (it takes about 200 MiB a worker).
LEAST_ROOM = 64 * _MIB


def unfit(now: Mapping[str, Seen], first: Mapping[str, Seen], place: Place, host: str) -> tuple[Finding, ...]:
    """What keeps this host out; ``first`` is what was seen before the first start. What is unknown keeps nobody out."""
    found: list[Finding] = []
    gpus, ports, memory = (now.get(name) for name in ASKED)
    if isinstance(gpus, GpuHealth):
        found += _gpus(gpus, first.get("gpu-health"), place, host)
    if isinstance(ports, InfiniBand):
        found += _ports(ports, first.get("infiniband"), host)
    if isinstance(memory, Memory):
        found += _memory(memory, host)
    return tuple(found)


def _gpus(seen: GpuHealth, first: Seen | None, place: Place, host: str) -> Iterator[Finding]:
    lost = by_name("gpu-fell-off-bus-xid-ecc")
    before = _used(first.answer.gpus, place) if isinstance(first, GpuHealth) and first.answer else ()
    if seen.stuck and before:
        yield finding(lost, "the NVIDIA driver no longer answers: a GPU or its firmware is stuck",
                      subject=Subject(host=host), evidence=seen.facts(), confidence=0.9)  # fmt: skip
    if seen.answer is None:
        return
    here = _used(seen.answer.gpus, place)
    known = {gpu.uuid: gpu for gpu in before}
    for gpu in here:
        evidence, subject = (told_of(gpu, seen.answer.source),), Subject(host=host, gpu=gpu.index)
        if isinstance(gpu.recovery, str) and gpu.recovery != "none":
            yield finding(lost, f"the driver asks for a {gpu.recovery} of GPU {gpu.index}", subject=subject,
                          evidence=evidence)  # fmt: skip
        if gpu.rows_failed is True:
            yield finding(by_name("gpu-memory-worn"), f"GPU {gpu.index} could not replace a bad row of its memory",
                          subject=subject, evidence=evidence)  # fmt: skip
        then = known.get(gpu.uuid)
        if then is not None and isinstance(gpu.ecc_errors, int) and isinstance(then.ecc_errors, int):
            more = gpu.ecc_errors - then.ecc_errors
            if more > 0:
                yield finding(lost, f"GPU {gpu.index} has had {more} uncorrectable memory errors since the job began",
                              subject=subject, evidence=evidence)  # fmt: skip
    gone = sorted(set(known) - {gpu.uuid for gpu in seen.answer.gpus})
    if gone:
        yield finding(lost, f"{', '.join(gone)} was there when the job began, and the driver no longer lists it",
                      subject=Subject(host=host), evidence=seen.facts())  # fmt: skip


def _used(gpus: Sequence[Gpu], place: Place) -> tuple[Gpu, ...]:
    """The GPUs that the job may use."""
    numbers = visible(place.environ, gpus).gpus
    return tuple(gpu for gpu in gpus if gpu.index in numbers)


def _ports(seen: InfiniBand, first: Seen | None, host: str) -> Iterator[Finding]:
    """All ports that worked when the job began are down; as long as one works, NCCL takes that."""
    worked = {port.name for port in first.ports if port.is_active} if isinstance(first, InfiniBand) else set()
    down = [port for port in seen.ports if port.name in worked and not port.is_active]
    if down and len(down) == len(worked):
        names = ", ".join(port.name for port in down)
        yield finding(by_name("ib-port-degraded"), f"{names} worked when the job began, and no port is active now",
                      subject=Subject(host=host), evidence=tuple(map(told, down)))  # fmt: skip


def _memory(seen: Memory, host: str) -> Iterator[Finding]:
    if seen.room is not None and seen.room < LEAST_ROOM:
        yield finding(by_name("host-oom-killed"), f"{seen.room // _MIB} MiB of memory are left, in which no worker "
                      "can start", subject=Subject(host=host), evidence=seen.facts())  # fmt: skip

"""Will a job find the GPUs that it counts on, in the order that it expects, and for itself alone?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.facts.checks import Place, fact
from holdfast.facts.checks.gpus import NAMED, Gpus, User
from holdfast.facts.gpus import Answer, Gpu
from holdfast.facts.gpus.visible import ORDER, VARIABLE, Visible
from holdfast.findings import Fact, Finding, Level, Remedy, Safety, Subject, finding
from holdfast.rules.causes import by_name

_GIB = 1 << 30
#: Memory in use on a GPU that no process is told to hold: the driver's own part is below this.
_NOBODYS_BYTES = 2 * _GIB


def judge(seen: Gpus, place: Place) -> Iterator[Finding]:
    """From the bus to the job: the driver answers, has all GPUs, the job sees enough, and they are free."""
    yield from _driver(seen)
    if seen.visible is not None and seen.answer is None:
        yield finding(
            by_name("invalid-device-ordinal"),
            f"{VARIABLE}={seen.visible.said} names GPUs, and this host, or container, has none",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.7,
        )
    if seen.answer is None or seen.visible is None:
        return
    yield from _lost(seen, seen.answer)
    yield from _visible(seen, seen.answer.gpus, seen.visible, place)
    yield from _fabric(seen, seen.answer)
    yield from _usable(seen.answer)
    yield from _in_use(seen, seen.answer)


def _driver(seen: Gpus) -> Iterator[Finding]:
    evidence = seen.facts()
    if seen.stuck:
        yield finding(
            by_name("gpu-fell-off-bus-xid-ecc"),
            "the NVIDIA driver does not answer: a GPU or its firmware is stuck, and whoever touches it will be too",
            evidence=evidence,
            confidence=0.7,
        )
    elif seen.on_bus and seen.answer is None:
        bound = {device.driver for device in seen.on_bus}
        why = f"they belong to {', '.join(sorted(bound - {''}))}" if bound - {"", "nvidia"} else "no driver answers"
        yield finding(
            by_name("cuda-driver-mismatch"),
            f"{_count(len(seen.on_bus))} on the PCI bus, and {why}: CUDA will find none",
            evidence=evidence,
            confidence=0.9,
        )


def _lost(seen: Gpus, answer: Answer) -> Iterator[Finding]:
    """GPUs that the bus has, or the kernel's driver names, and NVML does not list."""
    listed = {gpu.bus for gpu in answer.gpus}
    taken = {device.bus for device in seen.on_bus if device.driver not in ("", "nvidia")}  # given away: vfio-pci
    missing = sorted(({device.bus for device in seen.on_bus} | set(seen.of_driver)) - listed - taken)
    if missing and not answer.gpus:
        yield finding(
            by_name("cuda-driver-mismatch"),
            f"{_count(len(missing))} on the PCI bus, and the driver lists none: hidden from this container, or lost; "
            "CUDA will find none",
            level=Level.WARNING,
            evidence=seen.facts(),
            confidence=0.6,
        )
    elif missing:
        yield finding(
            by_name("gpu-fell-off-bus-xid-ecc"),
            f"{_count(len(missing))} ({', '.join(missing)}) that the driver no longer lists: lost, or hidden from this "
            "container",
            evidence=(*seen.facts(), fact("named by the kernel's driver", ", ".join(seen.of_driver) or "none", NAMED)),
            confidence=0.6,
        )


def _visible(seen: Gpus, gpus: Sequence[Gpu], visible: Visible, place: Place) -> Iterator[Finding]:
    cause = by_name("invalid-device-ordinal")
    evidence = seen.facts()
    if visible.twice:
        yield finding(
            cause,
            f"{VARIABLE}={visible.said} names {visible.twice} twice: CUDA then shows no GPU at all",
            evidence=evidence,
        )
    elif visible.wrong:
        left = f"only {len(visible.gpus)} of {len(gpus)} are visible" if visible.gpus else "none is visible"
        yield finding(
            cause,
            f"{VARIABLE}={visible.said}: {visible.wrong} is no GPU of this host, and CUDA stops there: {left}",
            level=Level.WARNING if visible.wrong.startswith("MIG-") else Level.ERROR,
            evidence=evidence,
            confidence=0.5 if visible.wrong.startswith("MIG-") else 1.0,
        )
    if place.workers is not None and place.workers > len(visible.gpus):
        die = "the last ones die of an invalid device ordinal" if visible.gpus else "CUDA finds none"
        yield finding(
            cause,
            f"{place.workers} workers are to run here, and they will see {len(visible.gpus)} GPUs: {die}",
            evidence=evidence,
        )
    yield from _order(gpus, visible, evidence)


def _order(gpus: Sequence[Gpu], visible: Visible, evidence: tuple[Fact, ...]) -> Iterator[Finding]:
    cause = by_name("gpu-renumbered")
    if visible.said is not None and visible.gpus and visible.gpus != tuple(range(len(visible.gpus))):
        names = ", ".join(f"cuda:{place} is GPU {gpu}" for place, gpu in enumerate(visible.gpus))
        yield finding(
            cause, f"{VARIABLE}={visible.said} gives the GPUs new numbers: {names}", level=Level.NOTE, evidence=evidence
        )
    models = {gpu.name for gpu in gpus}
    if len(models) > 1 and not visible.by_bus:
        yield finding(
            cause,
            f"GPUs of several kinds ({', '.join(sorted(models))}): CUDA numbers the fastest first, nvidia-smi "
            f"by the bus, so that their numbers need not agree",
            level=Level.WARNING,
            evidence=evidence,
            confidence=0.8,
            remedies=(
                Remedy(text="Let both count alike.", command=f"export {ORDER}=PCI_BUS_ID", safety=Safety.DISRUPTIVE),
            ),
        )


def _fabric(seen: Gpus, answer: Answer) -> Iterator[Finding]:
    """Drivers before Hopper do not say whether the switches are set up; then the process that does it is looked for."""
    if seen.switches and not seen.managed and all(gpu.fabric is None for gpu in answer.gpus):
        yield finding(
            by_name("cuda-driver-mismatch"),
            f"NVSwitches are here ({seen.switches}), and no Fabric Manager that can be seen "
            "from here: without it CUDA says `system not yet initialized`",
            level=Level.WARNING,
            confidence=0.5,
            evidence=(*seen.facts(), fact("nv-fabricmanager", "no such process", "/proc")),
        )


def _usable(answer: Answer) -> Iterator[Finding]:
    cause = by_name("gpu-settings")
    for gpu in answer.gpus:
        subject = Subject(gpu=gpu.index)
        told = (fact(f"GPU {gpu.index}", f"compute mode {gpu.compute_mode}", answer.source),)
        if gpu.compute_mode == "prohibited":
            yield finding(
                cause,
                f"GPU {gpu.index} is in compute mode prohibited: no process may use it",
                subject=subject,
                evidence=told,
            )
        if gpu.mig is True:
            yield finding(
                cause,
                f"GPU {gpu.index} is in MIG mode: a process sees one slice of it, and NCCL cannot join slices "
                "of one GPU",
                level=Level.WARNING,
                subject=subject,
                confidence=0.8,
                evidence=(fact(f"GPU {gpu.index}", "MIG mode is on", answer.source),),
            )


def _in_use(seen: Gpus, answer: Answer) -> Iterator[Finding]:
    cause = by_name("gpu-in-use")
    for gpu in answer.gpus:
        users = [user for user in seen.users if user.gpu == gpu.index]
        if users:
            yield finding(
                cause,
                f"GPU {gpu.index} is not free: {', '.join(map(_who, users))}",
                level=Level.WARNING,
                subject=Subject(gpu=gpu.index),
                evidence=seen.facts(),
                remedies=(*_ending(users), *cause.remedies),
            )
        elif gpu.held == () and isinstance(gpu.memory_used_bytes, int) and gpu.memory_used_bytes > _NOBODYS_BYTES:
            yield finding(
                cause,
                f"GPU {gpu.index} has {gpu.memory_used_bytes / _GIB:.1f} GiB in use, and the driver tells of no "
                "process that holds it",
                level=Level.WARNING,
                subject=Subject(gpu=gpu.index),
                evidence=seen.facts(),
                confidence=0.6,
            )


def _who(user: User) -> str:
    memory = f" with {user.memory_bytes / _GIB:.1f} GiB" if user.memory_bytes is not None else ""
    if user.name is None:
        return f"process {user.pid}{memory}, of another container or without a trace in /proc"
    state = ", a zombie that nobody has waited for" if user.state == "Z" else ""
    return f"{user.name} (process {user.pid}, user {user.owner}){memory}{state}"


def _ending(users: Sequence[User]) -> tuple[Remedy, ...]:
    ours = " ".join(str(user.pid) for user in users if user.name is not None and user.state != "Z")
    if not ours:
        return ()
    return (
        Remedy(
            text="End it, after making sure whose it is and that nobody wants it.",
            command=f"kill {ours}",
            safety=Safety.DISRUPTIVE,
        ),
    )


def _count(number: int) -> str:
    return "there is 1 NVIDIA GPU" if number == 1 else f"there are {number} NVIDIA GPUs"

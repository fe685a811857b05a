"""Classify what a rank waits in, by its stack: a collective, backward, the device, or the store.

Only frames between the innermost line of user code and the top of the stack count. If C++ waits
directly below a user line (``work.wait()``, ``loss.item()``), there is no frame, and the text of
the line decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from holdfast.core.rank_table import SourceLine, ThreadStack
from holdfast.host.processes.user_code import innermost_user_frame
from holdfast.watcher.rules.call_sites import SourceContexts


class WaitKind(StrEnum):
    """What a rank waits in; later kinds say less about which rank it waits for."""

    COLLECTIVE = "collective"
    POINT_TO_POINT = "point-to-point"
    STORE = "store"
    BACKWARD = "backward"
    DEVICE = "device"


class StackWait(msgspec.Struct, frozen=True):
    """The call that a rank waits in (``all_reduce``) and the innermost line of user code."""

    kind: WaitKind
    call: str
    site: SourceLine | None

    def __str__(self) -> str:
        if self.site is None:
            return self.call
        return f"{self.call} at {self.site.file.rsplit('/', 1)[-1]}:{self.site.line}"


_COLLECTIVE_NAME = re.compile(
    r"(all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|reduce|gather|scatter|barrier"
    r"|monitored_barrier)\w*$"
)
_TRANSFER_NAME = re.compile(
    r"(send|recv|isend|irecv|batch_isend_irecv|send_object_list|recv_object_list)$"
)
_STORE_NAME = re.compile(
    r"(init_process_group|new_group|new_subgroups\w*|split_group|_store_based_barrier)$"
)
_KIND_OF_NAME = (
    (_COLLECTIVE_NAME, WaitKind.COLLECTIVE),
    (_TRANSFER_NAME, WaitKind.POINT_TO_POINT),
    (_STORE_NAME, WaitKind.STORE),
)
_C10D = re.compile(r"/torch/distributed/distributed_c10d\.py$")
_FUNCTIONAL = re.compile(r"/torch/distributed/_functional_collectives\.py$")
_RENDEZVOUS = re.compile(r"/torch/distributed/(rendezvous|elastic/rendezvous/\w+)\.py$")
#: Files in which an innermost frame waits in C++, and what it waits for.
_WAITING_FILES = (
    (
        re.compile(r"/torch/nn/parallel/distributed\.py$"),
        WaitKind.COLLECTIVE,
        "a collective of DistributedDataParallel",
    ),
    (
        re.compile(r"/torch/distributed/(fsdp|_composable)/"),
        WaitKind.COLLECTIVE,
        "a collective of FSDP",
    ),
    (re.compile(r"/torch/distributed/tensor/"), WaitKind.COLLECTIVE, "a collective of DTensor"),
    (
        re.compile(r"/torch/distributed/pipelining/"),
        WaitKind.POINT_TO_POINT,
        "a transfer of the pipeline",
    ),
    (re.compile(r"/torch/autograd/(graph|__init__)\.py$"), WaitKind.BACKWARD, "the backward pass"),
    (re.compile(r"/torch/cuda/(__init__|streams)\.py$"), WaitKind.DEVICE, "a wait for the GPU"),
)
_LINE_WAITS = re.compile(r"\.wait\(")
_LINE_SYNCHRONIZES = re.compile(r"\.(item|tolist|cpu|numpy|synchronize)\(|\.to\(\s*[\"']cpu")


def find_wait(threads: Sequence[ThreadStack], source: SourceContexts) -> StackWait | None:
    """Return what the main thread (the first) waits in; None if it does not wait.

    With a GPU, another thread runs the backward pass; if that thread is in a collective, the
    collective is returned.
    """
    if not threads:
        return None
    wait = classify_stack(threads[0], source)
    if wait is None or wait.kind != WaitKind.BACKWARD:
        return wait
    for thread in threads[1:]:
        inner = classify_stack(thread, source)
        if inner is not None and inner.kind == WaitKind.COLLECTIVE:
            return StackWait(inner.kind, f"{inner.call} in the backward pass", wait.site)
    return wait


def classify_stack(stack: ThreadStack, source: SourceContexts) -> StackWait | None:
    """Return what one thread waits in; None if its stack shows no wait for other ranks."""
    site = innermost_user_frame(stack)
    inner = stack.frames[: stack.frames.index(site)] if site is not None else stack.frames
    if not inner:
        return _classify_line(site, source)
    named = None
    for frame in inner:  # the outermost public name is the one that user code called
        named = _classify_frame(frame, site) or named
    if named is not None:
        return named
    for file, kind, call in _WAITING_FILES:
        if file.search(inner[0].file):
            return StackWait(kind, call, site)
    return None


def _classify_frame(frame: SourceLine, site: SourceLine | None) -> StackWait | None:
    name = frame.function
    if _FUNCTIONAL.search(frame.file):
        call = name if _COLLECTIVE_NAME.match(name) else "a collective"
        return StackWait(WaitKind.COLLECTIVE, call, site)
    if _RENDEZVOUS.search(frame.file):
        return StackWait(WaitKind.STORE, "the rendezvous", site)
    if not _C10D.search(frame.file):
        return None
    kind = next((kind for names, kind in _KIND_OF_NAME if names.match(name)), None)
    return StackWait(kind, name, site) if kind is not None else None


def _classify_line(site: SourceLine | None, source: SourceContexts) -> StackWait | None:
    context = source.get(site) if site is not None else None
    if context is None:
        return None
    if _LINE_WAITS.search(context.text):
        return StackWait(WaitKind.COLLECTIVE, "a collective that was started before", site)
    if _LINE_SYNCHRONIZES.search(context.text):
        return StackWait(WaitKind.DEVICE, "a wait for the device", site)
    return None

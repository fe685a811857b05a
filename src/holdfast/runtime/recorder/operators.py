"""Kernels in Python in front of c10d's operators: the recorder's, for machines without a C++ compiler, and faults'.

They stand at the Autograd key and redispatch below it, which releases the GIL. (At the backend's key, where the C++
recorder stands, a Python kernel can only call the one it replaces with the GIL held, and gloo's threads take the GIL
under gloo's own lock: that deadlocks.) Functional collectives and tensors of ``torch.inference_mode`` go past this key.
Completion is known from the work's future, and where gloo has none, for ``dist.send`` and ``dist.recv``, which block;
of isend, irecv and reduce_scatter it is not known.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from holdfast import blackbox
from holdfast.runtime.recorder.pens import Call, PythonPen


class Schema(NamedTuple):
    """Which argument of an operator is what; None: it has no such argument. ``tag`` is the root of rooted collectives.

    ``operation`` is the name in blackbox.OPERATIONS; positions are those of torch/csrc/distributed/c10d/Ops.cpp.
    """

    operation: str
    inputs: int | None
    group: int
    peer: int | None = None
    tag: int | None = None
    reduction: int | None = None


SCHEMAS: dict[str, Schema] = {
    "allreduce_": Schema("all_reduce", 0, 1, reduction=2),
    "broadcast_": Schema("broadcast", 0, 1, tag=2),
    "allgather_": Schema("all_gather", 1, 2),
    "_allgather_base_": Schema("all_gather_into_tensor", 1, 2),
    "reduce_scatter_": Schema("reduce_scatter", 1, 2, reduction=3),
    "_reduce_scatter_base_": Schema("reduce_scatter_tensor", 1, 2, reduction=3),
    "reduce_": Schema("reduce", 0, 1, tag=3, reduction=2),
    "gather_": Schema("gather", 1, 2, tag=3),
    "scatter_": Schema("scatter", 0, 2, tag=3),
    "alltoall_": Schema("all_to_all", 1, 2),
    "alltoall_base_": Schema("all_to_all_single", 1, 2),
    "barrier": Schema("barrier", None, 1),
    "monitored_barrier_": Schema("monitored_barrier", None, 1),
    "send": Schema("send", 0, 1, 2, 3),
    "recv_": Schema("recv", 0, 1, 2, 3),
    "recv_any_source_": Schema("recv_any_source", 0, 1, tag=2),
    "allreduce_coalesced_": Schema("all_reduce_coalesced", 0, 1, reduction=2),
    "allgather_coalesced_": Schema("all_gather_coalesced", 1, 2),
    "allgather_into_tensor_coalesced_": Schema("all_gather_into_tensor_coalesced", 1, 2),
    "reduce_scatter_tensor_coalesced_": Schema("reduce_scatter_tensor_coalesced", 1, 2, reduction=3),
}
_NUMBER = {name: number for number, name in enumerate(blackbox.OPERATIONS)}
_DTYPE = {name: number for number, name in enumerate(blackbox.DTYPES)}

_library: list[Any] = []  # kept for good: collecting it would take its kernels out
_blocking = threading.local()  # the last send or recv of this thread, for the blocking forms


#: Calls what stood there before: the rest of the operator's own work.
Onward = Callable[..., Any]


def register(pen: PythonPen) -> None:
    """Put a recording kernel in front of every c10d operator that this torch has."""
    put_in_front(SCHEMAS, lambda name, _, onward: _recording(pen, name, onward))
    _finish_blocking(pen)


def put_in_front(names: Iterable[str], make: Callable[[str, Any, Onward], Callable[..., Any]]) -> None:
    """For each operator install ``make(name, operator, onward)``; ``onward(keys, *args)`` does what it did before."""
    library = torch.library.Library("c10d", "IMPL")
    for name in names:
        operator = getattr(getattr(torch.ops.c10d, name, None), "default", None)
        if operator is not None:
            library.impl(name, make(name, operator, _onward(operator)), "Autograd", with_keyset=True)
    _library.append(library)


def _onward(operator: Any) -> Onward:
    return lambda keys, *args, **kwargs: operator.redispatch(keys & torch._C._after_autograd_keyset, *args, **kwargs)


def _recording(pen: PythonPen, name: str, onward: Onward) -> Callable[..., Any]:
    operation, inputs, group_at, peer_at, tag_at, reduction_at = SCHEMAS[name]
    operation_number = _NUMBER[operation]

    def recorded(keys: Any, *args: Any, **kwargs: Any) -> Any:
        group = dist.ProcessGroup.unbox(args[group_at])
        shape, dtype, tensors, on_host = _describe(args[inputs] if inputs is not None else None)
        call = Call(
            elements=_product(shape),
            dtype=dtype,
            shape=shape,
            tensors=tensors,
            peer=-1 if peer_at is None else args[peer_at],
            tag=-1 if tag_at is None else args[tag_at],
            reduction=blackbox.NO_REDUCTION if reduction_at is None else _reduction(args[reduction_at]),
            backend=group.name(),
        )
        number = pen.record(group.group_name, operation_number, call)
        try:
            result = onward(keys, *args, **kwargs)
        except BaseException:
            pen.finish(number, failed=True)
            raise
        _follow(pen, number, result, on_host=on_host)
        return result

    return recorded


def _describe(value: Any) -> tuple[tuple[int, ...], int, int, bool]:
    """Shape and dtype number of the first tensor, how many there are, and whether they lie in host memory."""
    tensors = value if isinstance(value, list | tuple) else [] if value is None else [value]
    first = tensors[0] if tensors else None
    if isinstance(first, list | tuple):
        first = first[0] if first else None
    if first is None:
        return (), 0, len(tensors), True
    dtype = _DTYPE.get(str(first.dtype).removeprefix("torch."), 0)
    return tuple(first.shape), dtype, len(tensors), first.device.type == "cpu"


def _reduction(boxed: Any) -> int:
    """The number in blackbox.REDUCTIONS; none where this torch does not show it to Python."""
    try:
        return int(boxed.op())
    except (AttributeError, RuntimeError):
        return blackbox.NO_REDUCTION


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total if shape else 0


def _follow(pen: PythonPen, number: int, result: Any, *, on_host: bool) -> None:
    boxed = result[-1] if isinstance(result, tuple) else result
    if boxed is None:
        pen.finish(number)
        return
    if not on_host:
        pen.cannot_tell(number)  # a CUDA future completes when enqueued: it would tell a lie
        return
    try:
        dist.Work.unbox(boxed).get_future().add_done_callback(lambda done: pen.finish(number, failed=_broke(done)))
    except RuntimeError:  # gloo's send, recv and reduce_scatter
        if getattr(_blocking, "inside", False):
            _blocking.number = number
        else:
            pen.cannot_tell(number)


def _broke(done: Any) -> bool:
    try:
        done.value()
    except RuntimeError:
        return True
    return False


def _finish_blocking(pen: PythonPen) -> None:
    """``dist.send`` and ``dist.recv`` return when they are complete; isend and irecv stay pending in the box."""
    import torch.distributed.distributed_c10d as c10d  # noqa: PLC0415 - some builds of torch have none

    for name in ("send", "recv"):
        original = getattr(c10d, name)

        @functools.wraps(original)
        def blocking(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            _blocking.number, _blocking.inside = 0, True
            try:
                result = _original(*args, **kwargs)
            finally:
                _blocking.inside = False
            if _blocking.number:
                pen.finish(_blocking.number)
            return result

        for module in (c10d, dist):
            setattr(module, name, blocking)

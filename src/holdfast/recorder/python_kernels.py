"""Python kernels in front of c10d's operators: for recording without a C++ compiler, and faults.

They are registered at the Autograd key and redispatch below it, which releases the GIL. (At the
backend's key, where the C++ recorder is, a Python kernel can only call the replaced kernel with the
GIL held, and gloo's threads take the GIL under gloo's own lock: a deadlock.) Functional collectives
and tensors of ``torch.inference_mode`` bypass this key. Completion is recorded from the work's
future; for ``dist.send`` and ``dist.recv``, which have none in gloo but block, from their return;
for isend, irecv and reduce_scatter it is unknown.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from holdfast.core import trace_file
from holdfast.recorder.backends import CallDetails, PythonRecorder


class OperatorSchema(NamedTuple):
    """The position of each argument of an operator; None: no such argument.

    ``operation`` is the name in trace_file.OPERATIONS; ``tag`` is the root of rooted collectives;
    positions are those of torch/csrc/distributed/c10d/Ops.cpp.
    """

    operation: str
    inputs: int | None
    group: int
    peer: int | None = None
    tag: int | None = None
    reduction: int | None = None


SCHEMAS: dict[str, OperatorSchema] = {
    "allreduce_": OperatorSchema("all_reduce", 0, 1, reduction=2),
    "broadcast_": OperatorSchema("broadcast", 0, 1, tag=2),
    "allgather_": OperatorSchema("all_gather", 1, 2),
    "_allgather_base_": OperatorSchema("all_gather_into_tensor", 1, 2),
    "reduce_scatter_": OperatorSchema("reduce_scatter", 1, 2, reduction=3),
    "_reduce_scatter_base_": OperatorSchema("reduce_scatter_tensor", 1, 2, reduction=3),
    "reduce_": OperatorSchema("reduce", 0, 1, tag=3, reduction=2),
    "gather_": OperatorSchema("gather", 1, 2, tag=3),
    "scatter_": OperatorSchema("scatter", 0, 2, tag=3),
    "alltoall_": OperatorSchema("all_to_all", 1, 2),
    "alltoall_base_": OperatorSchema("all_to_all_single", 1, 2),
    "barrier": OperatorSchema("barrier", None, 1),
    "monitored_barrier_": OperatorSchema("monitored_barrier", None, 1),
    "send": OperatorSchema("send", 0, 1, 2, 3),
    "recv_": OperatorSchema("recv", 0, 1, 2, 3),
    "recv_any_source_": OperatorSchema("recv_any_source", 0, 1, tag=2),
    "allreduce_coalesced_": OperatorSchema("all_reduce_coalesced", 0, 1, reduction=2),
    "allgather_coalesced_": OperatorSchema("all_gather_coalesced", 1, 2),
    "allgather_into_tensor_coalesced_": OperatorSchema("all_gather_into_tensor_coalesced", 1, 2),
    "reduce_scatter_tensor_coalesced_": OperatorSchema(
        "reduce_scatter_tensor_coalesced", 1, 2, reduction=3
    ),
}
_OPERATION_NUMBERS = {name: number for number, name in enumerate(trace_file.OPERATIONS)}
_DTYPE_NUMBERS = {name: number for number, name in enumerate(trace_file.DTYPES)}

_kernels: dict[str, Callable[..., Any]] = {}  # the latest of each operator
_library: list[Any] = []  # never released: that would remove its kernels
_unrecorded: set[str] = set()
_blocking = threading.local()  # this thread's last send or recv, for the blocking forms


#: Calls the next kernel: the operator's original work.
NextKernel = Callable[..., Any]


def register_recording_kernels(recorder: PythonRecorder) -> None:
    """Install a recording kernel for every c10d operator of this torch."""
    install_kernels(
        SCHEMAS, lambda name, _, next_kernel: _recording_kernel(recorder, name, next_kernel)
    )
    _wrap_blocking_calls(recorder)


def install_kernels(
    names: Iterable[str], make: Callable[[str, Any, NextKernel], Callable[..., Any]]
) -> None:
    """Install ``make(name, operator, next_kernel)`` for each operator.

    ``next_kernel(keys, *args)`` runs the previous behavior: that of an earlier call, or torch's.
    """
    library = torch.library.Library("c10d", "IMPL")
    for name in names:
        operator = getattr(getattr(torch.ops.c10d, name, None), "default", None)
        if operator is None:
            continue
        earlier = _kernels.get(name)
        _kernels[name] = make(name, operator, earlier or _next_kernel(operator))
        if earlier is None:  # torch calls only the latest kernel of a key
            library.impl(name, _latest_kernel(name), "Autograd", with_keyset=True)
    _library.append(library)


def _latest_kernel(name: str) -> Callable[..., Any]:
    def latest(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return _kernels[name](keys, *args, **kwargs)

    return latest


def _next_kernel(operator: Any) -> NextKernel:
    # Read here: a torch without them raises now, and not in the script's collectives.
    redispatch, below = operator.redispatch, torch._C._after_autograd_keyset
    return lambda keys, *args, **kwargs: redispatch(keys & below, *args, **kwargs)


def _recording_kernel(
    recorder: PythonRecorder, name: str, next_kernel: NextKernel
) -> Callable[..., Any]:
    schema = SCHEMAS[name]
    operation_number = _OPERATION_NUMBERS[schema.operation]

    def recorded(keys: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            group, call, on_host = _describe_call(schema, args)
            number = recorder.record(group, operation_number, call)
        except Exception as error:  # noqa: BLE001 - another torch may pass other arguments
            _report_unrecorded(schema.operation, error)
            return next_kernel(keys, *args, **kwargs)
        try:
            result = next_kernel(keys, *args, **kwargs)
        except BaseException:
            recorder.finish(number, failed=True)
            raise
        _record_completion(recorder, number, result, on_host=on_host)
        return result

    return recorded


def _describe_call(schema: OperatorSchema, args: tuple[Any, ...]) -> tuple[str, CallDetails, bool]:
    """Return the group's name, what to record of the call, and whether its tensors are on host."""
    _, inputs, group_at, peer_at, tag_at, reduction_at = schema
    group = dist.ProcessGroup.unbox(args[group_at])
    shape, dtype, tensors, on_host = _describe_tensors(args[inputs] if inputs is not None else None)
    call = CallDetails(
        elements=_product(shape),
        dtype=dtype,
        shape=shape,
        tensors=tensors,
        peer=-1 if peer_at is None else args[peer_at],
        tag=-1 if tag_at is None else args[tag_at],
        reduction=trace_file.NO_REDUCTION
        if reduction_at is None
        else _reduction_number(args[reduction_at]),
        backend=group.name(),
    )
    return group.group_name, call, on_host


def _report_unrecorded(operation: str, error: Exception) -> None:
    """Print once per operation that this torch's calls of it cannot be recorded."""
    if operation not in _unrecorded:
        _unrecorded.add(operation)
        sys.stderr.write(
            f"holdfast: {operation} of torch {torch.__version__} is not recorded ({error!r})\n"
        )


def _describe_tensors(value: Any) -> tuple[tuple[int, ...], int, int, bool]:
    """Return shape and dtype number of the first tensor, their count, and whether on host."""
    tensors = value if isinstance(value, list | tuple) else [] if value is None else [value]
    first = tensors[0] if tensors else None
    if isinstance(first, list | tuple):
        first = first[0] if first else None
    if first is None:
        return (), 0, len(tensors), True
    dtype = _DTYPE_NUMBERS.get(str(first.dtype).removeprefix("torch."), 0)
    return tuple(first.shape), dtype, len(tensors), first.device.type == "cpu"


def _reduction_number(boxed: Any) -> int:
    """Return the index in trace_file.REDUCTIONS; NO_REDUCTION if torch hides it."""
    try:
        return int(boxed.op())
    except (AttributeError, RuntimeError):
        return trace_file.NO_REDUCTION


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total if shape else 0


def _record_completion(
    recorder: PythonRecorder, number: int, result: Any, *, on_host: bool
) -> None:
    boxed = result[-1] if isinstance(result, tuple) else result
    if boxed is None:
        recorder.finish(number)
        return
    if not on_host:
        recorder.mark_no_completion(number)  # a CUDA future completes when enqueued, not when done
        return

    def complete(future: Any) -> None:
        recorder.finish(number, failed=_has_failed(future))
        recorder.awaited.discard(number)

    recorder.awaited.add(number)
    try:
        dist.Work.unbox(boxed).get_future().add_done_callback(complete)
    except (RuntimeError, AttributeError):  # gloo's send, recv and reduce_scatter; another torch
        recorder.awaited.discard(number)
        if getattr(_blocking, "inside", False):
            _blocking.number = number
        else:
            recorder.mark_no_completion(number)


def _has_failed(future: Any) -> bool:
    try:
        future.value()
    except RuntimeError:
        return True
    return False


def _wrap_blocking_calls(recorder: PythonRecorder) -> None:
    """Record completion of ``dist.send`` and ``dist.recv``; isend and irecv stay pending."""
    import torch.distributed.distributed_c10d as c10d  # noqa: PLC0415 - missing in some torch builds

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
                recorder.finish(_blocking.number)
            return result

        for module in (c10d, dist):
            setattr(module, name, blocking)

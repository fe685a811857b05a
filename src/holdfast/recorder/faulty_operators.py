"""Apply injected faults to collectives: kernels in front of c10d's operators and the recorder's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from holdfast.recorder.python_kernels import SCHEMAS, NextKernel, install_kernels


def register_faulty_kernels(next_fault: Callable[[], str | None]) -> None:
    """Install a kernel for every collective that applies the fault that ``due()`` returns."""
    collectives = [
        name
        for name, schema in SCHEMAS.items()
        if schema.peer is None and name != "recv_any_source_"
    ]
    install_kernels(
        collectives,
        lambda name, operator, next_kernel: _faulty_kernel(next_fault, name, operator, next_kernel),
    )


def _faulty_kernel(
    next_fault: Callable[[], str | None], name: str, operator: Any, next_kernel: NextKernel
) -> Callable[..., Any]:
    inputs, group_at = SCHEMAS[name].inputs, SCHEMAS[name].group

    def faulty(keys: Any, *args: Any, **kwargs: Any) -> Any:
        fault = next_fault()
        if fault == "skip-collective":
            return _completed_result(operator, args)
        if fault == "wrong-order":
            torch.ops.c10d.barrier(torch.empty(0), args[group_at], [], async_op=False, timeout=-1)
        if fault == "wrong-shape" and inputs is not None:
            args = (*args[:inputs], _append_element(args[inputs]), *args[inputs + 1 :])
        if fault == "corrupt" and inputs is not None:
            _fill_with_nan(args[inputs])
        return next_kernel(keys, *args, **kwargs)

    return faulty


def _completed_result(operator: Any, args: tuple[Any, ...]) -> Any:
    """Return the collective's result as if it had completed immediately."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(args[0])
    c10d: Any = torch._C._distributed_c10d  # its stubs lack the function
    work = c10d._create_work_from_future(future).boxed()
    return work if len(operator._schema.returns) == 1 else (args[0], work)


def _append_element(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_append_element(element) for element in value]
    return torch.cat([value.detach().reshape(-1), value.detach().reshape(-1)[:1]])


def _fill_with_nan(value: Any) -> None:
    for tensor in value if isinstance(value, list | tuple) else [value]:
        if isinstance(tensor, list | tuple):
            _fill_with_nan(tensor)
        elif tensor.is_floating_point():
            tensor.detach().fill_(float("nan"))

"""Does to a collective what a fault asks for: kernels in front of c10d's operators, and of the recorder's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from holdfast.runtime.recorder.operators import SCHEMAS, Onward, put_in_front


def register(due: Callable[[], str | None]) -> None:
    """Put a kernel in front of every collective that asks ``due()`` what to do to this one."""
    collectives = [name for name, schema in SCHEMAS.items() if schema.peer is None and name != "recv_any_source_"]
    put_in_front(collectives, lambda name, operator, onward: _faulty(due, name, operator, onward))


def _faulty(due: Callable[[], str | None], name: str, operator: Any, onward: Onward) -> Callable[..., Any]:
    inputs, group_at = SCHEMAS[name].inputs, SCHEMAS[name].group

    def faulty(keys: Any, *args: Any, **kwargs: Any) -> Any:
        fault = due()
        if fault == "skip-collective":
            return _nothing_done(operator, args)
        if fault == "wrong-order":
            torch.ops.c10d.barrier(torch.empty(0), args[group_at], [], async_op=False, timeout=-1)
        if fault == "wrong-shape" and inputs is not None:
            args = (*args[:inputs], _one_more(args[inputs]), *args[inputs + 1 :])
        if fault == "corrupt" and inputs is not None:
            _poison(args[inputs])
        return onward(keys, *args, **kwargs)

    return faulty


def _nothing_done(operator: Any, args: tuple[Any, ...]) -> Any:
    """What the collective returns, as if it had completed at once."""
    done: torch.futures.Future[Any] = torch.futures.Future()
    done.set_result(args[0])
    c10d: Any = torch._C._distributed_c10d  # its stubs lack the function
    work = c10d._create_work_from_future(done).boxed()
    return work if len(operator._schema.returns) == 1 else (args[0], work)


def _one_more(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_one_more(each) for each in value]
    return torch.cat([value.detach().reshape(-1), value.detach().reshape(-1)[:1]])


def _poison(value: Any) -> None:
    for tensor in value if isinstance(value, list | tuple) else [value]:
        if isinstance(tensor, list | tuple):
            _poison(tensor)
        elif tensor.is_floating_point():
            tensor.detach().fill_(float("nan"))

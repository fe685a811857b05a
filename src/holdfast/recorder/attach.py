"""Install the recorder in torch, right after the script's own ``import torch``.

The Python wrappers are called a few times in a job's life (creating and destroying groups) or once
per step (the optimizer's global hook); the C++ backend, or ``python_kernels.py`` without it,
records the collectives.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from holdfast import recorder
from holdfast.core import settings, trace_file
from holdfast.core.trace_file import TraceNote, TraceWriter
from holdfast.recorder import group_threads, host_times, python_kernels
from holdfast.recorder.backends import NativeRecorder, PythonRecorder, RecorderBackend

_OPERATION_NUMBERS = {name: number for number, name in enumerate(trace_file.OPERATIONS)}


def attach(trace: TraceWriter, mode: str, library: Path | None) -> RecorderBackend | None:
    """Install the backend of ``mode`` and the hooks; return None if torch lacks c10d.

    ``mode`` is ``auto``, ``native`` or ``python``.
    """
    if not dist.is_available():
        trace.note(TraceNote.WORD, "this torch has no torch.distributed: nothing to record")
        return None
    backend = _install_backend(trace, mode, library)
    trace.note(TraceNote.WORD, f"recorder: {backend.mode}, torch {torch.__version__}")
    _wrap_groups(trace, backend)
    _preload_modules()
    _count_steps()
    host_times.measure_collections(trace)
    with suppress(ImportError, AttributeError):  # without it, a slow loader has no name
        host_times.measure_loaders(trace)
    recorder.use_backend(backend)
    recorder.renewal_listeners.extend((backend.renew, _recorded_groups.clear))
    return backend


def _preload_modules() -> None:
    """Import now what DistributedDataParallel imports, before a process group exists.

    The default arguments of that module would keep the existing group, whose gloo threads outlive
    the interpreter: one finished job in a few dozen aborts at exit (torch 2.13), and would be
    restarted for nothing.
    """
    with suppress(ImportError):
        importlib.import_module("torch.distributed.nn.functional")


def _install_backend(trace: TraceWriter, mode: str, library: Path | None) -> RecorderBackend:
    home = str(Path(torch.__file__).parent)
    if mode != "python" and library is not None:
        try:
            return NativeRecorder(library, trace, home)
        except (OSError, AttributeError) as error:
            trace.note(TraceNote.WORD, f"cannot load the C++ recorder: {error}")
    backend = PythonRecorder(trace, home)
    python_kernels.register_recording_kernels(backend)
    return backend


def _wrap_groups(trace: TraceWriter, backend: RecorderBackend) -> None:
    """Record who creates which group: a rank that skips ``new_group`` blocks the others."""
    import torch.distributed.distributed_c10d as c10d  # noqa: PLC0415 - missing in some torch builds

    def destroying(*_: Any, **__: Any) -> str:
        backend.wait_for_callbacks()
        group_threads.wait_until_idle()
        return "destroy_process_group"

    def wrap(name: str, members: Callable[..., str]) -> None:
        original = _with_default_timeout(getattr(c10d, name))

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            number = backend.begin(members(*args, **kwargs), _OPERATION_NUMBERS[name])
            try:
                result = original(*args, **kwargs)
            except BaseException:
                backend.finish(number, failed=True)
                raise
            backend.finish(number)
            _record_groups(trace, c10d)
            return result

        for module in (c10d, dist):
            setattr(module, name, recorded)

    wrap("init_process_group", functools.partial(_record_world_size, trace))
    wrap("new_group", _group_creators)
    wrap("destroy_process_group", destroying)
    atexit.register(backend.wait_for_callbacks)  # for a script that leaves its groups


def _with_default_timeout(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``make`` with the configured timeout as the default.

    This includes ``new_group``, which ignores the default group's timeout and uses torch's 10 or 30
    minutes.
    """
    limit_s = settings.read_setting("HOLDFAST_GROUP_TIMEOUT_S").value
    signature = inspect.signature(make)
    if not isinstance(limit_s, int | float) or "timeout" not in signature.parameters:
        return make

    @functools.wraps(make)
    def limited(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind_partial(*args, **kwargs)
        if bound.arguments.get("timeout") is None:
            bound.arguments["timeout"] = timedelta(seconds=limit_s)
        return make(*bound.args, **bound.kwargs)

    return limited


#: A larger world_size is not recorded.
_MAX_WORLD_SIZE = 1 << 14


def _record_world_size(
    trace: TraceWriter,
    backend: Any = None,  # noqa: ARG001 - torch's signature
    init_method: Any = None,  # noqa: ARG001 - as above
    timeout: Any = None,  # noqa: ARG001 - as above
    world_size: Any = -1,
    *_: Any,
    **__: Any,
) -> str:
    """Return the pseudo group of ``init_process_group``.

    If the script waits for more ranks than were started, record for which ones.
    """
    if not isinstance(world_size, int) or world_size <= 0:
        world_size = settings.read_count("WORLD_SIZE")
    if trace.world_size < world_size <= _MAX_WORLD_SIZE:
        described = {"name": "init_process_group", "ranks": list(range(world_size))}
        trace.note_json(TraceNote.MEMBERS, described | {"description": ""})
    return "init_process_group"


def _group_creators(
    ranks: Any = None, *_: Any, use_local_synchronization: bool = False, **__: Any
) -> str:
    """Return the pseudo group whose members must all call ``new_group``."""
    if use_local_synchronization and ranks:
        return "new_group of " + ",".join(map(str, ranks))
    return "new_group"


_recorded_groups: set[str] = set()


def _record_groups(trace: TraceWriter, c10d: Any) -> None:
    """Record the members of every new group.

    ``_world`` is private: without it the members stay unknown.
    """
    world = getattr(c10d, "_world", None)
    for group, ranks in list(getattr(world, "pg_group_ranks", {}).items()):
        name = getattr(group, "group_name", None)
        if not isinstance(name, str) or name in _recorded_groups:
            continue
        _recorded_groups.add(name)
        described = {
            "name": name,
            "ranks": sorted(ranks),
            "description": getattr(group, "group_desc", "") or "",
        }
        trace.note_json(TraceNote.MEMBERS, described)


def _count_steps() -> None:
    """Count optimizer steps as training steps, unless the script calls ``holdfast.step``."""
    register_optimizer_step_post_hook(lambda *_: recorder.record_step())

"""Hooks the recorder into torch, right after the script's own ``import torch``: operators, process groups, steps.

What is wrapped in Python is called a few times in a job's life (making and destroying groups) or once a step
(the optimizer's global hook); collectives themselves are seen by the C++ pen, or by ``operators.py`` without it.
"""

from __future__ import annotations

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

from holdfast import blackbox, settings
from holdfast.blackbox import BoxWriter, Note
from holdfast.runtime import recorder
from holdfast.runtime.recorder import operators
from holdfast.runtime.recorder.pens import NativePen, Pen, PythonPen

_NUMBER = {name: number for number, name in enumerate(blackbox.OPERATIONS)}


def attach(box: BoxWriter, mode: str, library: Path | None) -> Pen | None:
    """Install the pen of ``mode`` (``auto``, ``native``, ``python``) and the hooks; None where torch lacks c10d."""
    if not dist.is_available():
        box.note(Note.WORD, "this torch has no torch.distributed: nothing to record")
        return None
    pen = _pen(box, mode, library)
    box.note(Note.WORD, f"recorder: {pen.mode}, torch {torch.__version__}")
    _wrap_groups(box, pen)
    _import_early()
    _count_steps()
    recorder.use_pen(pen)
    recorder.renewals.extend((pen.renew, _noted.clear))
    return pen


def _import_early() -> None:
    """Import what DistributedDataParallel imports when it is made, now, before a process group exists.

    Its default arguments keep the group that exists then, whose gloo threads outlive the interpreter: one finished job
    in a few dozen aborts at its very end (torch 2.13), and would be restarted for nothing.
    """
    with suppress(ImportError):
        importlib.import_module("torch.distributed.nn.functional")


def _pen(box: BoxWriter, mode: str, library: Path | None) -> Pen:
    home = str(Path(torch.__file__).parent)
    if mode != "python" and library is not None:
        try:
            return NativePen(library, box, home)
        except (OSError, AttributeError) as error:
            box.note(Note.WORD, f"the C++ recorder does not load: {error}")
    pen = PythonPen(box, home)
    operators.register(pen)
    return pen


def _wrap_groups(box: BoxWriter, pen: Pen) -> None:
    """Record who makes which group: a rank that leaves out ``new_group`` blocks the others in the store."""
    import torch.distributed.distributed_c10d as c10d  # noqa: PLC0415 - some builds of torch have none

    def wrap(name: str, members: Callable[..., str]) -> None:
        original = _with_timeout(getattr(c10d, name))

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            number = pen.begin(members(*args, **kwargs), _NUMBER[name])
            try:
                made = original(*args, **kwargs)
            except BaseException:
                pen.finish(number, failed=True)
                raise
            pen.finish(number)
            _note_groups(box, c10d)
            return made

        for module in (c10d, dist):
            setattr(module, name, recorded)

    wrap("init_process_group", lambda *_, **__: "init_process_group")
    wrap("new_group", _makers_of_group)
    wrap("destroy_process_group", lambda *_, **__: "destroy_process_group")


def _with_timeout(make: Callable[..., Any]) -> Callable[..., Any]:
    """``make``, with the time limit that the user asked for where the script names none.

    ``new_group`` is given it too: by itself it ignores the default group's and takes torch's 10 or 30 minutes.
    """
    limit_s = settings.read("HOLDFAST_GROUP_TIMEOUT_S").value
    signature = inspect.signature(make)
    if not isinstance(limit_s, int | float) or "timeout" not in signature.parameters:
        return make

    @functools.wraps(make)
    def limited(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs)
        if given.arguments.get("timeout") is None:
            given.arguments["timeout"] = timedelta(seconds=limit_s)
        return make(*given.args, **given.kwargs)

    return limited


def _makers_of_group(ranks: Any = None, *_: Any, use_local_synchronization: bool = False, **__: Any) -> str:
    """The pseudo group whose members must all call ``new_group``: everybody, or the new members alone."""
    if use_local_synchronization and ranks:
        return "new_group of " + ",".join(map(str, ranks))
    return "new_group"


_noted: set[str] = set()


def _note_groups(box: BoxWriter, c10d: Any) -> None:
    """Write down the members of every group that is new (``_world`` is private: without it members stay unknown)."""
    world = getattr(c10d, "_world", None)
    for group, ranks in list(getattr(world, "pg_group_ranks", {}).items()):
        name = getattr(group, "group_name", None)
        if not isinstance(name, str) or name in _noted:
            continue
        _noted.add(name)
        described = {"name": name, "ranks": sorted(ranks), "description": getattr(group, "group_desc", "") or ""}
        box.note_json(Note.MEMBERS, described)


def _count_steps() -> None:
    """Count optimizer steps as training steps, unless the script says its own through ``holdfast.step``."""
    register_optimizer_step_post_hook(lambda *_: recorder.stepped())

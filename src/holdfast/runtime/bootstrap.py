"""Stands in front of the user's unchanged script: ``python -m holdfast.runtime.bootstrap [-m] script args…``.

Creates the box, arranges for the recorder to be hooked in right after the script's own ``import torch`` (not before: a
script may set variables first), then runs the script as ``__main__`` exactly as ``python script`` would, and writes
down how it ended. Whatever fails here is said once and never stops the script.
"""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import importlib.abc
import importlib.util
import os
import runpy
import signal
import sys
import time
import types
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

from holdfast import settings
from holdfast.blackbox import STACK_SIGNAL, BoxWriter, Note
from holdfast.errors import HoldfastError
from holdfast.runtime import imported, recorder

PR_SET_PDEATHSIG = 1  # prctl(2): the signal that the kernel sends when the parent is gone
PR_SET_PTRACER = 0x59616D61  # prctl(2): who may trace this process although it is no ancestor


def main(arguments: Sequence[str]) -> None:
    """Record, then run ``[-m] target args…``."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if settings.text("HOLDFAST_SPARE"):
        from holdfast.runtime import warm

        warm.become_worker(settings.count("HOLDFAST_SPARE"))
    as_module = arguments[0] == "-m"
    target, *rest = arguments[1:] if as_module else arguments
    box = _open_box()
    if box is not None:
        _prepare(box)
    sys.argv = [target, *rest]
    _run_recorded(box, lambda: _run_module(target) if as_module else _run_script(target))


def _open_box() -> BoxWriter | None:
    try:
        path = settings.path("HOLDFAST_BOX")
        if path is None or settings.text("HOLDFAST_RECORDER") == "off":
            return None
        return BoxWriter(
            path,
            rank=settings.count("RANK"),
            world_size=settings.count("WORLD_SIZE"),
            local_rank=settings.count("LOCAL_RANK"),
            generation=settings.count("TORCHELASTIC_RESTART_COUNT"),
            records=settings.count("HOLDFAST_RING"),
        )
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}; this rank runs without a recorder\n")
        return None


def _prepare(box: BoxWriter) -> None:
    recorder.use(box)
    facts = settings.path("HOLDFAST_FACTS")
    if facts is not None:
        try:
            box.note(Note.FACTS, facts.read_text(encoding="utf-8").strip())
        except OSError as error:
            box.note(Note.WORD, f"no facts of the host: {error}")
    # A file of its own, opened now: the dump must need neither the GIL nor an allocation.
    stacks = Path(f"{box.path}.stacks").open("w")  # noqa: SIM115 - open as long as the process lives
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True, chain=False)
    _let_watcher_trace(int(settings.text("HOLDFAST_WATCHER_PID") or 0))
    os.register_at_fork(after_in_child=lambda: recorder.use(None))  # data-loader workers are no ranks
    imports = imported.Writer(box.path)
    if settings.text("HOLDFAST_SPARES") != "off":
        recorder.step_listeners.append(imports.stepped)
    after_import("torch", lambda: _attach(box), before=imports.before_torch)


def _let_watcher_trace(watcher: int) -> None:
    """Where Yama lets only ancestors trace (ptrace_scope 1), name the watcher, which is a sibling."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if watcher and scope.exists() and scope.read_text().strip() == "1":
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(watcher), 0, 0, 0)


def _attach(box: BoxWriter) -> None:
    from holdfast.runtime.recorder.attach import attach

    try:
        attach(box, settings.text("HOLDFAST_RECORDER") or "auto", settings.path("HOLDFAST_NATIVE"))
    except HoldfastError:
        raise
    except Exception as error:  # noqa: BLE001 - another torch may lack any of what is hooked; training goes on
        box.note(Note.WORD, f"the recorder could not be attached: {error!r}")
        sys.stderr.write(f"holdfast: the recorder does not fit this torch ({error}); going on without it\n")
    injected = settings.text("HOLDFAST_INJECT")
    if injected:  # what a fault raises at once is the script's, not ours
        from holdfast.runtime import faults

        generation = settings.count("TORCHELASTIC_RESTART_COUNT")
        faults.arm(injected, box, rank=settings.count("RANK"), generation=generation)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls back once before the module ``name`` is executed, and once when it has been."""

    def __init__(self, name: str, call: Callable[[], None], before: Callable[[], None]) -> None:
        self._name, self._call, self._before, self._looking = name, call, before, False

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - Python's signature
        target: types.ModuleType | None = None,  # noqa: ARG002 - as above
    ) -> ModuleSpec | None:
        """The real spec, with a loader that calls back afterwards; None for every other module."""
        if name != self._name or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                self._before()
                execute(module)
                sys.meta_path.remove(self)
                self._call()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(name: str, call: Callable[[], None], before: Callable[[], None] = lambda: None) -> None:
    """Call ``call`` once the module ``name`` has been imported, at once where it is already there."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(name, call, before))


def _run_script(target: str) -> None:
    if not Path(target).is_file():  # a folder or a zip file with a __main__.py: Python's own way
        runpy.run_path(target, run_name="__main__")
        return
    target = os.path.abspath(target)  # noqa: PTH100 - as python itself since 3.9; resolve() would follow links
    sys.path[0] = str(Path(target).resolve().parent)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=target, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    exec(compile(Path(target).read_bytes(), target, "exec"), module.__dict__)  # noqa: S102 - that is the task


def _run_module(target: str) -> None:
    runpy.run_module(target, run_name="__main__", alter_sys=True)


def _run_recorded(box: BoxWriter | None, run: Callable[[], None]) -> None:
    try:
        run()
    except SystemExit as stop:
        _note_end(box, "sys.exit", stop)
        raise
    except BaseException as error:
        _note_end(box, "exception", error)
        sys.excepthook = _without_our_frames(_below_torchs(sys.excepthook))
        raise
    else:
        _note_end(box, "end of script", None)


def _note_end(box: BoxWriter | None, how: str, error: BaseException | None) -> None:
    if box is None:
        return
    place = _user_place(error)
    if error is not None and how == "exception":
        for listener in recorder.raised_listeners.values():
            listener(error)
        box.note_json(Note.RAISED, {"type": type(error).__name__, "text": str(error)[:2000], **place})
    box.note_json(Note.ENDED, {"how": how, "time": time.time(), **place})


def _user_place(error: BaseException | None) -> dict[str, object]:
    """The innermost frame of the traceback that is the user's: in no library and not ours."""
    ours, standard = Path(__file__).parent.parent, Path(os.__file__).parent
    libraries = (str(ours), "site-packages", "dist-packages", str(standard), "<")
    found: dict[str, object] = {}
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        code = trace.tb_frame.f_code
        if not any(library in code.co_filename for library in libraries):
            found = {"file": code.co_filename, "line": trace.tb_lineno, "function": code.co_name}
        trace = trace.tb_next
    return found


_Hook = Callable[[type[BaseException], BaseException, types.TracebackType | None], object]


def _below_torchs(show: _Hook) -> _Hook:
    """The hook that was there before torch's, which puts the rank before every line: the launcher does so already."""
    import inspect

    if getattr(show, "__name__", "") != "_distributed_excepthook":
        return show
    found = inspect.getclosurevars(show).nonlocals.get("old_hook")
    return found if callable(found) else show


def _without_our_frames(show: _Hook) -> _Hook:
    def shown(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> object:
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
            trace = trace.tb_next
        return show(kind, error.with_traceback(trace), trace)

    return shown


if __name__ == "__main__":
    main(sys.argv[1:])

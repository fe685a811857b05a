"""Run the user's unchanged script: ``python -m holdfast.recorder.bootstrap [-m] script args…``.

Creates the trace, arranges for the recorder to be installed right after the script's own ``import
torch`` (not before: a script may set variables first), runs the script as ``__main__`` exactly as
``python script`` would, and records its exit. A failure in here is reported once and never stops
the script.
"""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import functools
import importlib.util
import os
import runpy
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NoReturn

from holdfast import recorder
from holdfast.core import settings
from holdfast.core.errors import HoldfastError
from holdfast.core.trace_file import STACK_SIGNAL, TraceNote, TraceWriter
from holdfast.recorder import imported_modules

PR_SET_PDEATHSIG = 1  # prctl(2): signal sent when the parent dies
_USER_BUDGET = "24h"
PR_SET_PTRACER = 0x59616D61  # prctl(2): a non-ancestor that may trace this process
#: Characters kept of an exception's text: a wrapped traceback ends with the original exception.
_TEXT_BEGIN, _TEXT_END = 2000, 4000
_MAX_FRAMES = 64
#: Parts of the names of files that are not the user's.
_LIBRARIES = (
    str(Path(__file__).parent.parent),
    "site-packages",
    "dist-packages",
    str(Path(os.__file__).parent),
    "<",
)
#: Seconds for the note of an exit, which never delays it longer.
_NOTE_LIMIT_S = 0.5
#: Files of the frames around the script.
_RUNS_SCRIPT = (__file__, runpy.__file__, "<frozen runpy>")


def main(arguments: Sequence[str]) -> None:
    """Record and run ``[-m] target args…``."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if settings.read_text("HOLDFAST_SPARE"):
        # only standby workers need it
        from holdfast.recorder import standby

        standby.become_worker(settings.read_count("HOLDFAST_SPARE"))
    as_module = arguments[0] == "-m"
    target, *rest = arguments[1:] if as_module else arguments
    trace = _open_trace()
    if trace is not None:
        _prepare(trace)
    sys.argv = [target, *rest]
    if trace is not None:
        os._exit = _recording_exit(trace, os._exit)  # type: ignore[assignment]
    _run_and_record_exit(trace, lambda: _run_module(target) if as_module else _run_script(target))


def _open_trace() -> TraceWriter | None:
    try:
        path = settings.read_path("HOLDFAST_TRACE")
        if path is None or settings.read_text("HOLDFAST_RECORDER") == "off":
            return None
        return TraceWriter(
            path,
            rank=settings.read_count("RANK"),
            world_size=settings.read_count("WORLD_SIZE"),
            local_rank=settings.read_count("LOCAL_RANK"),
            generation=settings.read_count("TORCHELASTIC_RESTART_COUNT"),
            records=settings.read_count("HOLDFAST_RING"),
        )
    except HoldfastError as error:
        sys.stderr.write(f"holdfast: {error}; recording is disabled on this rank\n")
        return None


def _prepare(trace: TraceWriter) -> None:
    recorder.use_trace(trace)
    facts = settings.read_path("HOLDFAST_FACTS")
    if facts is not None:
        try:
            trace.note(TraceNote.FACTS, facts.read_text(encoding="utf-8").strip())
        except OSError as error:
            trace.note(TraceNote.WORD, f"host facts unavailable: {error}")
    # PYTHONFAULTHANDLER: the stack of a crash goes to stderr
    dump_stacks = functools.partial(_dump_stacks, trace, crashes=not faulthandler.is_enabled())
    dump_stacks()
    recorder.renewal_listeners.append(dump_stacks)
    _allow_watcher_ptrace(int(settings.read_text("HOLDFAST_WATCHER_PID") or 0))
    # Data-loader workers are not ranks.
    os.register_at_fork(after_in_child=lambda: recorder.use_trace(None))
    if sys.stdin is not None and sys.stdin.isatty():
        builtins.input = _user_may_take_time(builtins.input)
    imports = imported_modules.ImportRecorder(trace.path)
    if settings.read_text("HOLDFAST_SPARES") != "off":
        recorder.step_listeners.append(imports.on_step)
    after_import("torch", lambda: _attach(trace), before=imports.before_torch)


def _dump_stacks(trace: TraceWriter, *, crashes: bool) -> None:
    """Let faulthandler write stacks beside the trace, after a signal and, if ``crashes``, a crash.

    The file is opened now, since the dump must need neither the GIL nor an allocation, and again
    when the trace is renewed: the agent deletes the files of an ended generation.
    """
    stacks = Path(f"{trace.path}.stacks").open("w")  # noqa: SIM115 - faulthandler keeps it open
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True, chain=False)
    if crashes:
        faulthandler.enable(file=stacks, all_threads=True)


def _user_may_take_time(read: Callable[..., str]) -> Callable[..., str]:
    """Wrap ``input``, which pdb uses, too: a rank that waits for its user does not hang."""

    @functools.wraps(read)
    def wait_for_user(*prompt: object) -> str:
        with recorder.extend_phase("input()", _USER_BUDGET):
            return read(*prompt)

    return wait_for_user


def _allow_watcher_ptrace(watcher: int) -> None:
    """If Yama restricts ptrace to ancestors (ptrace_scope 1), allow the watcher, a sibling."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if watcher and scope.exists() and scope.read_text().strip() == "1":
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(watcher), 0, 0, 0)


def _attach(trace: TraceWriter) -> None:
    # imports torch
    from holdfast.recorder.attach import attach

    try:
        attach(
            trace,
            settings.read_text("HOLDFAST_RECORDER") or "auto",
            settings.read_path("HOLDFAST_NATIVE"),
        )
    except HoldfastError:
        raise
    except Exception as error:  # noqa: BLE001 - another torch may lack any hook; training continues
        trace.note(TraceNote.WORD, f"the recorder could not be attached: {error!r}")
        sys.stderr.write(
            f"holdfast: the recorder does not support this torch ({error}); continuing without it\n"
        )
    injected = settings.read_text("HOLDFAST_INJECT")
    if injected:  # outside the try: an injected error is the script's
        # only jobs with injected faults need it
        from holdfast.recorder import faults

        generation = settings.read_count("TORCHELASTIC_RESTART_COUNT")
        faults.arm_faults(injected, trace, rank=settings.read_count("RANK"), generation=generation)


class _AfterImport:
    """Calls back once before the module ``name`` is executed, and once after.

    For ``sys.meta_path``. The base class of finders would import ``tempfile``, which costs 7 ms.
    """

    def __init__(self, name: str, call: Callable[[], None], before: Callable[[], None]) -> None:
        self._name, self._call, self._before, self._is_searching = name, call, before, False

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - Python's signature
        target: types.ModuleType | None = None,  # noqa: ARG002 - as above
    ) -> ModuleSpec | None:
        """Return the real spec with a loader that calls back; None for other modules."""
        if name != self._name or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_searching = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                self._before()
                execute(module)
                sys.meta_path.remove(self)
                self._call()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def after_import(
    name: str, call: Callable[[], None], before: Callable[[], None] = lambda: None
) -> None:
    """Call ``call`` after the module ``name`` is imported; now if it already is."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(name, call, before))


def _run_script(target: str) -> None:
    if not Path(target).is_file():  # a folder or zip file with __main__.py
        runpy.run_path(target, run_name="__main__")
        return
    target = os.path.abspath(target)  # noqa: PTH100 - as Python since 3.9; resolve() follows links
    sys.path[0] = str(Path(target).resolve().parent)
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=target, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    exec(compile(Path(target).read_bytes(), target, "exec"), module.__dict__)  # noqa: S102 - the purpose of this module


def _run_module(target: str) -> None:
    runpy.run_module(target, run_name="__main__", alter_sys=True)


def _run_and_record_exit(trace: TraceWriter | None, run: Callable[[], None]) -> None:
    try:
        run()
    except SystemExit as stop:
        _record_exit(trace, "sys.exit", stop)
        raise
    except BaseException as error:
        _record_exit(trace, "exception", error)
        sys.excepthook = _hide_bootstrap_frames(_original_excepthook(sys.excepthook))
        raise
    else:
        _record_exit(trace, "end of script", None)


def _record_exit(trace: TraceWriter | None, how: str, error: BaseException | None) -> None:
    if trace is None:
        return
    raised = error
    if isinstance(error, SystemExit):
        raised = _handled_exception(error)
    elif error is not None:
        for listener in recorder.raised_listeners.values():
            listener(error)
    if raised is not None:
        text = str(raised)
        if len(text) > _TEXT_BEGIN + _TEXT_END:
            text = f"{text[:_TEXT_BEGIN]}\n…\n{text[-_TEXT_END:]}"
        described = {"type": type(raised).__name__, "text": text, "frames": _frames(raised)}
        trace.note_json(TraceNote.RAISED, described | _user_frame(raised))
    _note_end(trace, how, _user_frame(error))


def _note_end(trace: TraceWriter, how: str, place: dict[str, object]) -> None:
    trace.note_json(TraceNote.ENDED, {"how": how, "time": time.time(), **place})


def _recording_exit(
    trace: TraceWriter, leave: Callable[[int], NoReturn]
) -> Callable[[int], NoReturn]:
    """Wrap ``os._exit``, which any thread may call, so that the line of the call is known."""
    rank_process = os.getpid()

    @functools.wraps(leave)
    def record_and_leave(status: int) -> NoReturn:
        if os.getpid() == rank_process:
            frame: types.FrameType | None = sys._getframe()
            place: dict[str, object] = {}
            while frame is not None and not (place := _user_line(frame, frame.f_lineno)):
                frame = frame.f_back
            # In a thread: a signal handler may have interrupted the holder of the trace's lock.
            note = threading.Thread(target=_note_end, args=(trace, "os._exit", place), daemon=True)
            with suppress(RuntimeError):  # the interpreter is shutting down
                note.start()
                note.join(_NOTE_LIMIT_S)
        leave(status)

    return record_and_leave


def _handled_exception(stop: SystemExit) -> BaseException | None:
    """Return the exception in whose handler the script called ``sys.exit`` with an error."""
    handled: BaseException | None = stop if stop.code not in (None, 0) else None
    while isinstance(handled, SystemExit):
        handled = handled.__context__
    return handled


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    """Return file, line and function of the traceback's frames, innermost first."""
    import traceback

    frames = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename not in _RUNS_SCRIPT
    ]
    return frames[: -_MAX_FRAMES - 1 : -1]


def _user_frame(error: BaseException | None) -> dict[str, object]:
    """Return the innermost user frame of the traceback: not a library's or holdfast's."""
    location: dict[str, object] = {}
    trace = error.__traceback__ if error is not None else None
    while trace is not None:
        location = _user_line(trace.tb_frame, trace.tb_lineno) or location
        trace = trace.tb_next
    return location


def _user_line(frame: types.FrameType, line: int) -> dict[str, object]:
    """Return the location of a frame; empty if it is a library's or holdfast's."""
    code = frame.f_code
    if any(library in code.co_filename for library in _LIBRARIES):
        return {}
    return {"file": code.co_filename, "line": line, "function": code.co_name}


_Hook = Callable[[type[BaseException], BaseException, types.TracebackType | None], object]


def _original_excepthook(show: _Hook) -> _Hook:
    """Return the hook before torch's.

    torch's prefixes lines with the rank, as the launcher does too.
    """
    import inspect

    if getattr(show, "__name__", "") != "_distributed_excepthook":
        return show
    hook = inspect.getclosurevars(show).nonlocals.get("old_hook")
    return hook if callable(hook) else show


def _hide_bootstrap_frames(show: _Hook) -> _Hook:
    def shown(
        kind: type[BaseException], error: BaseException, trace: types.TracebackType | None
    ) -> object:
        while trace is not None and trace.tb_frame.f_code.co_filename in _RUNS_SCRIPT:
            trace = trace.tb_next
        return show(kind, error.with_traceback(trace), trace)

    return shown


if __name__ == "__main__":
    main(sys.argv[1:])

"""Run the tracer in a separate process with limits on time and memory."""

from __future__ import annotations

import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from holdfast.core import settings
from holdfast.core.errors import InvalidValue, MissingExtra, MissingFile
from holdfast.plan.model_counts import ModuleSummary
from holdfast.plan.setup import TrainingSetup
from holdfast.plan.simulated_step import SimulatedStep

_MAX_BYTES = 1 << 24


class TraceLimits(msgspec.Struct, frozen=True):
    """Limits of the process that runs the user's function: total seconds, and writable bytes."""

    timeout_s: float = 300.0
    memory_bytes: int = 16 << 30


class TraceRequest(msgspec.Struct, frozen=True):
    """``source`` names the function; with a setup a step is run, else the module is described."""

    source: str
    limits: TraceLimits
    setup: TrainingSetup | None = None
    #: Bytes of a GPU.
    gpu_memory: int | None = None


class TraceProgress(msgspec.Struct, frozen=True, tag="progress"):
    """The current activity."""

    activity: str


class TraceError(msgspec.Struct, frozen=True, tag="refusal"):
    """The request failed; ``missing`` names a missing package."""

    subject: str
    why: str
    next_step: str
    missing: str = ""


class TraceResult(msgspec.Struct, frozen=True, tag="answered"):
    """The result: one of the two."""

    summary: ModuleSummary | None = None
    simulated: SimulatedStep | None = None


TraceMessage = TraceProgress | TraceError | TraceResult
_MESSAGE_DECODER: msgspec.json.Decoder[TraceMessage] = msgspec.json.Decoder(TraceMessage)
ReportProgress = Callable[[str], None]


def describe_module(
    source: str, limits: TraceLimits | None = None, report: ReportProgress | None = None
) -> ModuleSummary:
    """Count the parameters of the module that ``source`` builds on the meta device, without memory.

    Raises:
        MissingFile: no such file.
        MissingExtra: torch is not installed.
        InvalidValue: it cannot be loaded or built within the limits.
    """
    summary = _run_tracer(TraceRequest(source, limits or TraceLimits()), report).summary
    if summary is None:
        raise _trace_failure(source, "the tracing process returned an unexpected result")
    return summary


def simulate_step(
    source: str,
    setup: TrainingSetup,
    gpu_memory: int | None = None,
    limits: TraceLimits | None = None,
    report: ReportProgress | None = None,
) -> SimulatedStep:
    """Run a training step of the module that ``source`` builds, on fake tensors.

    ``gpu_memory``: bytes of a GPU.

    Raises:
        MissingFile: no such file.
        MissingExtra: torch is not installed.
        InvalidValue: it cannot be loaded, built or run within the limits, this torch lacks a
            required interface, or the setup is unsupported. The closed formulas remain available.
    """
    simulated = _run_tracer(
        TraceRequest(source, limits or TraceLimits(), setup, gpu_memory), report
    ).simulated
    if simulated is None:
        raise _trace_failure(source, "the tracing process returned an unexpected result")
    return simulated


def _run_tracer(request: TraceRequest, report: ReportProgress | None) -> TraceResult:
    limits = request.limits
    file = request.source.rpartition(":")[0]
    if file.endswith(".py") and not Path(file).is_file():
        raise MissingFile(file)
    environment = {
        **settings.current_environment(),
        "CUDA_VISIBLE_DEVICES": "",
    }  # the loaded code must not use a GPU
    with tempfile.TemporaryFile() as stderr_file:
        command = [sys.executable, "-W", "ignore", "-m", "holdfast.plan.torch_tracing"]
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr_file,
            env=environment,
            start_new_session=True,
        )
        try:
            if child.stdin is None or child.stdout is None:  # both are pipes
                raise _trace_failure(request.source, "the tracing process has no pipes")
            with suppress(BrokenPipeError):
                child.stdin.write(msgspec.json.encode(request))
                child.stdin.close()
            result = _read_result(
                child.stdout, request, time.monotonic() + limits.timeout_s, report
            )
            if result is None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(2.0)  # its exit status is more informative than that of the kill
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        if result is None:
            raise _trace_failure(request.source, _exit_reason(stderr_file, child.returncode))
    if isinstance(result, TraceResult):
        return result
    if result.missing:
        raise MissingExtra(result.missing)
    raise InvalidValue(result.subject, why=result.why, next_step=result.next_step)


def _read_result(
    pipe: IO[bytes], request: TraceRequest, deadline: float, report: ReportProgress | None
) -> TraceResult | TraceError | None:
    """Return the result; None if the process ended without one."""
    buffer, activity = b"", "loading"
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, deadline - time.monotonic())):
                limit = f"timed out after {request.limits.timeout_s:.0f} s while {activity}"
                raise InvalidValue(request.source, why=limit, next_step="increase the time limit")
            data = pipe.read1(1 << 16)  # type: ignore[attr-defined]
            buffer += data
            if not data or len(buffer) > _MAX_BYTES:
                return None
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                message = _MESSAGE_DECODER.decode(line)
                if not isinstance(message, TraceProgress):
                    return message
                activity = message.activity
                if report is not None:
                    report(activity)


def _exit_reason(stderr_file: IO[bytes], status: int) -> str:
    stderr_file.seek(0, 2)
    stderr_file.seek(max(0, stderr_file.tell() - 4096))
    lines = stderr_file.read().decode(errors="replace").strip().splitlines()
    return f"the tracing process exited with status {status}" + (
        f": {lines[-1][:200]}" if lines else ""
    )


def _trace_failure(source: str, why: str) -> InvalidValue:
    return InvalidValue(source, why=why, next_step="use the closed formulas, which need only sizes")

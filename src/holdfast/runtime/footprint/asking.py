"""Asks a process of its own: the user's code is loaded there, may take so long and so much memory, and may die."""

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

from holdfast import settings
from holdfast.errors import BadValue, MissingExtra, MissingFile
from holdfast.plan.described import Described
from holdfast.plan.setup import Setup
from holdfast.plan.simulated import Simulated

_MOST_BYTES = 1 << 24


class Limits(msgspec.Struct, frozen=True):
    """Of the process that runs the user's function: seconds in all, and bytes that it may write to."""

    time_s: float = 300.0
    memory: int = 16 << 30


class Question(msgspec.Struct, frozen=True):
    """``source`` names the function; without a setup the module is described, with one a step of it is run."""

    source: str
    limits: Limits
    setup: Setup | None = None
    #: Of a GPU.
    memory: int | None = None


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """What is going on, in some words."""

    what: str


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """It cannot be done; ``missing`` names a package where it is that."""

    subject: str
    why: str
    next_step: str
    missing: str = ""


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """One of the two."""

    described: Described | None = None
    simulated: Simulated | None = None


Line = Progress | Refusal | Answered
_LINES: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)
Tell = Callable[[str], None]


def describe(source: str, limits: Limits | None = None, tell: Tell | None = None) -> Described:
    """Count the weights of the module that ``source`` builds, on the meta device: no memory is used.

    Raises:
        MissingFile: there is no such file.
        MissingExtra: torch is not installed.
        BadValue: it cannot be loaded or built, or not within the limits.
    """
    found = _ask(Question(source, limits or Limits()), tell).described
    if found is None:
        raise _ended(source, "it gave another answer than was asked for")
    return found


def simulate(
    source: str, setup: Setup, memory: int | None = None, limits: Limits | None = None, tell: Tell | None = None
) -> Simulated:
    """Run a training step of the module that ``source`` builds, on fake tensors; ``memory``: bytes of a GPU.

    Raises:
        MissingFile: there is no such file.
        MissingExtra: torch is not installed.
        BadValue: it cannot be loaded, built or run, or not within the limits; this torch lacks what is needed; or the
            setup is one that cannot be run so. The closed formulas stay.
    """
    found = _ask(Question(source, limits or Limits(), setup, memory), tell).simulated
    if found is None:
        raise _ended(source, "it gave another answer than was asked for")
    return found


def _ask(question: Question, tell: Tell | None) -> Answered:
    limits = question.limits
    file = question.source.rpartition(":")[0]
    if file.endswith(".py") and not Path(file).is_file():
        raise MissingFile(file)
    environment = {**settings.environment(), "CUDA_VISIBLE_DEVICES": ""}  # what is loaded must not take a GPU
    with tempfile.TemporaryFile() as complaints:
        command = [sys.executable, "-W", "ignore", "-m", "holdfast.runtime.footprint"]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaints,
                                 env=environment, start_new_session=True)  # fmt: skip
        try:
            if child.stdin is None or child.stdout is None:  # pipes were asked for
                raise _ended(question.source, "it could not be spoken to")
            with suppress(BrokenPipeError):
                child.stdin.write(msgspec.json.encode(question))
                child.stdin.close()
            answer = _listen(child.stdout, question, time.monotonic() + limits.time_s, tell)
            if answer is None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(2.0)  # its own status says more than that of a kill
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        if answer is None:
            raise _ended(question.source, _last_words(complaints, child.returncode))
    if isinstance(answer, Answered):
        return answer
    if answer.missing:
        raise MissingExtra(answer.missing)
    raise BadValue(answer.subject, why=answer.why, next_step=answer.next_step)


def _listen(pipe: IO[bytes], question: Question, until: float, tell: Tell | None) -> Answered | Refusal | None:
    """Its last word; None where it ended without one."""
    held, last = b"", "it was loaded"
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, until - time.monotonic())):
                limit = f"{question.limits.time_s:.0f} s were over while {last}"
                raise BadValue(question.source, why=limit, next_step="give it more time")
            more = pipe.read1(1 << 16)  # type: ignore[attr-defined]
            held += more
            if not more or len(held) > _MOST_BYTES:
                return None
            *lines, held = held.split(b"\n")
            for line in lines:
                said = _LINES.decode(line)
                if not isinstance(said, Progress):
                    return said
                last = said.what
                if tell is not None:
                    tell(last)


def _last_words(complaints: IO[bytes], status: int) -> str:
    complaints.seek(0, 2)
    complaints.seek(max(0, complaints.tell() - 4096))
    lines = complaints.read().decode(errors="replace").strip().splitlines()
    return f"the process that loaded it ended with status {status}" + (f": {lines[-1][:200]}" if lines else "")


def _ended(source: str, why: str) -> BadValue:
    return BadValue(source, why=why, next_step="the closed formulas need only sizes")

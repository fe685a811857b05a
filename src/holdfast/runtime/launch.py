"""Runs a job as torchrun does, with our agent in place of torch's: torchrun's ``run`` itself is called."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousError
from torch.distributed.launcher import api

from holdfast import settings
from holdfast.errors import HostUnfit, MissingFile, RendezvousUnreachable, UsageError
from holdfast.runtime import ending
from holdfast.runtime.elastic import Agent
from holdfast.runtime.generation import End, Generation, Hooks, Look, Order
from holdfast.runtime.patience import SIGNALS, Signals, await_rendezvous, endpoint, unreachable
from holdfast.runtime.spares import Mode
from holdfast.runtime.tailing import whole_lines
from holdfast.runtime.torchrun import behind_bootstrap, keep_logs

#: torchrun ends with this status whenever the job fails, and when a signal ends it.
FAILED = 1
_ALIKE = "that each of them is started by holdfast run"


def launch(given: argparse.Namespace, hooks: Hooks, *, logs: Path, quiet: bool) -> int:
    """Run the job that ``given`` (see ``runtime.torchrun.parse``) describes, and return the exit status of torchrun.

    Where a signal ended the job and all workers saved before they left, it is theirs: 128 + the signal's number. The
    workers' output goes to files under ``logs`` too, unless the user arranged it; ``quiet`` turns off what torch
    logs of its own doings.

    Raises:
        UsageError: a script, program or endpoint that cannot be.
        RendezvousUnreachable: the nodes did not come together.
    """
    if quiet:
        _silence()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # the workers' lines pass through this process
    ending.adopt_orphans()
    guarded = _Guarded(hooks)
    signals = Signals(getattr(given, "signals_to_handle", SIGNALS), hooks.abandon)
    agents = _own_agent(_agents(given, guarded, signals, logs))
    with signals, whole_lines(), agents, _rendezvous_errors(given, guarded):
        try:
            await_rendezvous(given, hooks.note)
            record(torchrun.run)(given)
        except (ChildFailedError, SignalException):
            return FAILED if signals.status is None else signals.status
        except FileNotFoundError as error:  # of $PYTHON_EXEC, most likely
            raise MissingFile(error.filename or error) from error
    return 0


def _agents(given: argparse.Namespace, hooks: Hooks, signals: Signals, logs: Path) -> Callable[..., Agent]:
    """What makes the agent in place of the class that torch's launcher names."""
    kept = keep_logs(given, logs)
    spares = Mode(str(settings.read("HOLDFAST_SPARES", flag=getattr(given, "spares", None)).value))
    alone = torchrun.parse_min_max_nnodes(given.nnodes)[1] == 1
    if getattr(given, "run_path", False):
        given.run_path = False  # the bootstrap runs the script in its own interpreter, which is what this asks for
        given.no_python = False

    def make(spec: WorkerSpec, **torchs: Any) -> Agent:
        if not given.no_python:
            spec = dataclasses.replace(spec, args=behind_bootstrap(spec.args))
        return Agent(spec, hooks=hooks, signals=signals, logs=kept, spares=spares, alone=alone, **torchs)

    return make


@contextmanager
def _own_agent(make: Callable[..., Agent]) -> Iterator[None]:
    """Let torch's launcher make our agent: it offers no other way, and all else that it does is as it should be."""
    torchs = vars(api)["LocalElasticAgent"]
    setattr(api, "LocalElasticAgent", make)  # noqa: B010 - mypy will not have a class assigned to
    try:
        yield
    finally:
        setattr(api, "LocalElasticAgent", torchs)  # noqa: B010


@contextmanager
def _rendezvous_errors(given: argparse.Namespace, hooks: _Guarded) -> Iterator[None]:
    """Turn torch's errors of the rendezvous, which carry C++ stacks, into one sentence."""
    try:
        yield
    except RendezvousConnectionError as error:
        raise _unreachable(given, hooks, str(error.__cause__ or error)) from error
    except RendezvousError as error:
        why = str(error) or "the nodes did not come together in time"
        raise _unreachable(
            given, hooks, why, f"see that all nodes have the same --rdzv-id and endpoint, {_ALIKE}"
        ) from error
    except DistError as error:
        raise _unreachable(given, hooks, str(error), f"check the address and ports of node 0, and {_ALIKE}") from error


def _unreachable(
    given: argparse.Namespace, hooks: _Guarded, why: str, step: str | None = None
) -> RendezvousUnreachable:
    host, port = endpoint(given)
    error = unreachable(f"{host}:{port}", next(iter(why.splitlines()), "").rstrip(". "), step)
    if hooks.began:
        error.exit_status = FAILED
    return error


def _silence() -> None:
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


class _Guarded:
    """The hooks, of which a bug must not take the job along: what they raise is shown, and the job goes on."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._ticks = True
        self.began = False
        self.note = hooks.note
        self.room = hooks.room
        self.abandon = hooks.abandon

    def prepare(self) -> None:
        with self._caught():
            self._hooks.prepare()

    def handover(self) -> str:
        told = [""]
        with self._caught():
            told.append(self._hooks.handover())
        return told[-1]

    def take_over(self, state: str) -> None:
        with self._caught():
            if state:
                self._hooks.take_over(state)

    def variables(self, rank: int, generation: int) -> Mapping[str, str]:
        return self._hooks.variables(rank, generation)

    def started(self, generation: Generation) -> None:
        self.began = True
        with self._caught():
            self._hooks.started(generation)

    def tick(self, look: Look) -> Order | None:
        order, ticks, self._ticks = None, self._ticks, False  # one that raised is not called again
        if ticks:
            with self._caught():
                order = self._hooks.tick(look)
                self._ticks = True
        return order

    def decided(self, order: Order) -> None:
        with self._caught():
            self._hooks.decided(order)

    def ended(self, how: End) -> None:
        with self._caught():
            self._hooks.ended(how)

    @contextmanager
    def _caught(self) -> Iterator[None]:
        try:
            yield
        except (SignalException, UsageError, HostUnfit):
            raise
        except Exception:  # noqa: BLE001 - the job is worth more than the watching of it
            traceback.print_exc()
            self.note("this is a bug of holdfast, please report it; the job goes on")

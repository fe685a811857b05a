"""Run a job with torchrun's own ``run``, with our agent in place of torch's."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch.distributed import DistError
from torch.distributed import run as torchrun
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, record
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError, RendezvousError
from torch.distributed.launcher import api

from holdfast.core import settings
from holdfast.core.errors import HostUnfit, MissingFile, RendezvousUnreachable, UsageError
from holdfast.launcher.elastic import command_line, termination, worker_start
from holdfast.launcher.elastic.agent import Agent
from holdfast.launcher.elastic.command_line import (
    configure_logs,
    has_own_logs,
    insert_bootstrap,
    parse_shown_ranks,
)
from holdfast.launcher.elastic.generation import (
    AgentHooks,
    Generation,
    NodeStatus,
    Order,
    OrderAction,
)
from holdfast.launcher.elastic.interruptible_wait import (
    SIGNALS,
    AgentSignals,
    await_rendezvous,
    rendezvous_endpoint,
    rendezvous_unreachable,
)
from holdfast.launcher.elastic.output_tail import whole_lines
from holdfast.launcher.elastic.standby_workers import StandbyMode
from holdfast.launcher.local_address import published_address
from holdfast.launcher.terminal.connection import LINE_PREFIX, Prefix, TerminalRelay

P = ParamSpec("P")
T = TypeVar("T")
#: torchrun's exit status if the job fails, or if a signal ends it.
FAILED = 1
_FAILED_TICK = Order(action=OrderAction.STOP, reason="the hook raised an exception")
_TEMPLATE = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"  # as torchrun reads it
#: Methods of torch's agent that ours overrides; all but ``run`` are private.
OVERRIDDEN_METHODS = (
    *("_exit_barrier", "_invoke_run", "_monitor_workers", "_rendezvous"),
    *("_shutdown", "_start_workers", "run"),
)
_SAME_LAUNCHER = "that `holdfast run` started each of them"


def launch(options: argparse.Namespace, hooks: AgentHooks, *, logs: Path, quiet: bool) -> int:
    """Run the job of ``options`` (see ``parse_run_options``); return the exit status of torchrun.

    If a signal ended the job and all workers saved before they exited, it is their status: 128 +
    the signal's number. The workers' output is also written to files in ``logs``, unless the user
    configured it; ``quiet`` turns off torch's own log messages.

    Raises:
        UsageError: an invalid script, program or endpoint.
        RendezvousUnreachable: the rendezvous failed.
    """
    if quiet:
        _silence_torch()
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # this process prints the workers' output
    termination.adopt_orphans()
    guarded = _GuardedHooks(hooks)
    signals = AgentSignals(getattr(options, "signals_to_handle", SIGNALS), hooks.abort)
    prefix = getattr(options, "prefix", Prefix.AUTO)
    terminal = _open_terminal(options, prefix)
    if terminal is not None:
        signals.before_exit = terminal.restore_input
    agents = _use_agent(_agent_factory(options, guarded, signals, logs, terminal))
    lines = whole_lines(prefixed=prefix != Prefix.NEVER)
    with terminal or nullcontext(), signals, lines, agents, _rendezvous_errors(options, guarded):
        try:
            await_rendezvous(options, hooks.notify)
            _choose_address(options)
            record(torchrun.run)(options)
        except (ChildFailedError, SignalException):
            return FAILED if signals.status is None else signals.status
        except FileNotFoundError as error:  # an invalid $PYTHON_EXEC
            raise MissingFile(error.filename or error) from error
    return 0


def _choose_address(options: argparse.Namespace) -> None:
    """Publish an address that the other nodes can reach, unless ``--local-addr`` is set."""
    if options.local_addr is not None:
        return
    if options.standalone or command_line.max_nodes(options) == 1:
        options.local_addr = published_address("localhost")
    elif options.rdzv_backend != "static":
        options.local_addr = published_address(rendezvous_endpoint(options)[0])


def _agent_factory(
    options: argparse.Namespace,
    hooks: AgentHooks,
    signals: AgentSignals,
    logs: Path,
    terminal: TerminalRelay | None,
) -> Callable[..., LocalElasticAgent]:
    run_logs = configure_logs(options, logs, terminal.streams if terminal else ())
    flag = getattr(options, "spares", None)
    standby = StandbyMode(str(settings.read_setting("HOLDFAST_SPARES", flag=flag).value))
    if getattr(options, "run_path", False):  # the bootstrap runs the script in its interpreter
        options.run_path = options.no_python = False

    def create_agent(spec: WorkerSpec, **torch_arguments: Any) -> LocalElasticAgent:
        if unknown := [name for name in OVERRIDDEN_METHODS if not hasattr(LocalElasticAgent, name)]:
            hooks.notify(
                f"the agent of torch {torch.__version__} differs (no {', '.join(unknown)}): it "
                "runs the job without a recorder and without recovery by holdfast"
            )
            return LocalElasticAgent(spec, **torch_arguments)
        if not worker_start.is_supported():
            hooks.notify(
                f"torch {torch.__version__} starts processes in another way: standby workers and "
                "in-process restarts are disabled"
            )
        if not options.no_python:
            spec = dataclasses.replace(spec, args=insert_bootstrap(spec.args))
        return Agent(
            spec,
            hooks=hooks,
            signals=signals,
            logs=run_logs,
            standby=standby,
            terminal=terminal,
            nodes=torchrun.parse_min_max_nnodes(options.nnodes),
            **torch_arguments,
        )

    return create_agent


def _open_terminal(options: argparse.Namespace, prefix: str) -> TerminalRelay | None:
    """Return the relay to the terminal; None without a terminal, or if the user configured logs."""
    if not worker_start.is_supported() or has_own_logs(options):
        return None
    template = settings.current_environment().get(_TEMPLATE) or LINE_PREFIX
    terminal = TerminalRelay(prefix, template, parse_shown_ranks(options))
    return terminal if terminal.is_usable else None


@contextmanager
def _use_agent(factory: Callable[..., LocalElasticAgent]) -> Iterator[None]:
    """Make torch's launcher create our agent; it has no parameter for it."""
    original = vars(api)["LocalElasticAgent"]
    setattr(api, "LocalElasticAgent", factory)  # noqa: B010 - mypy rejects assigning to a class
    try:
        yield
    finally:
        setattr(api, "LocalElasticAgent", original)  # noqa: B010


@contextmanager
def _rendezvous_errors(options: argparse.Namespace, hooks: _GuardedHooks) -> Iterator[None]:
    """Replace torch's rendezvous errors, which contain C++ stacks, by one sentence."""
    try:
        yield
    except RendezvousConnectionError as error:
        raise _unreachable(options, hooks, str(error.__cause__ or error)) from error
    except RendezvousError as error:
        why = str(error) or "the nodes did not all join in time"
        step = f"check that all nodes use the same --rdzv-id and endpoint, and {_SAME_LAUNCHER}"
        raise _unreachable(options, hooks, why, step) from error
    except DistError as error:
        step = f"check the address and ports of node 0, and {_SAME_LAUNCHER}"
        raise _unreachable(options, hooks, str(error), step) from error


def _unreachable(
    options: argparse.Namespace, hooks: _GuardedHooks, why: str, step: str | None = None
) -> RendezvousUnreachable:
    host, port = rendezvous_endpoint(options)
    first_line = next(iter(why.splitlines()), "").rstrip(". ")
    error = rendezvous_unreachable(f"{host}:{port}", first_line, step)
    if hooks.has_started:
        error.exit_status = FAILED
    return error


def _silence_torch() -> None:
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("torch.distributed"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


class _GuardedHooks:
    """Hooks whose bugs do not end the job: exceptions are printed, and the job continues."""

    def __init__(self, hooks: AgentHooks) -> None:
        self._hooks = hooks
        self._tick_works = True
        self.has_started = False
        self.notify, self.abort = hooks.notify, hooks.abort
        self.available_memory, self.helpers = hooks.available_memory, hooks.helpers
        self.worker_environment = hooks.worker_environment
        self.prepare = self._guard(hooks.prepare, None)
        self.export_state = self._guard(hooks.export_state, "")
        self.import_state = self._guard(hooks.import_state, None)
        self.order_agreed = self._guard(hooks.order_agreed, None)
        self.workers_ended = self._guard(hooks.workers_ended, None)

    def workers_started(self, generation: Generation) -> None:
        self.has_started = True
        self._guard(self._hooks.workers_started, None)(generation)

    def tick(self, status: NodeStatus) -> Order | None:
        if not self._tick_works:
            return None
        order = self._guard(self._hooks.tick, _FAILED_TICK)(status)
        self._tick_works = order is not _FAILED_TICK  # else it is not called again
        return order if self._tick_works else None

    def _guard(self, hook: Callable[P, T], fallback: T) -> Callable[P, T]:
        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return hook(*args, **kwargs)
            except (SignalException, UsageError, HostUnfit):
                raise
            except Exception:  # noqa: BLE001 - the job matters more than its monitoring
                traceback.print_exc()
                self.notify("this is a bug in holdfast, please report it; the job continues")
                return fallback

        return guarded

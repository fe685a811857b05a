"""torchrun's own command line with options of ours added, what can be checked before a launch, and the logs of a run.

Nothing of torchrun is written again here: its parser parses, and its ``run`` resolves what was parsed. Tested with
torch 2.13.0; what other versions since 2.4 may lack is asked for with ``getattr``.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.api import LogsDest

from holdfast.errors import BadValue, MissingFile

BOOTSTRAP = "holdfast.runtime.bootstrap"
_SEE = "see holdfast run --help, or torchrun --help"


class Parser(argparse.ArgumentParser):
    """Raises instead of printing the usage, which is two screens long."""

    def error(self, message: str) -> NoReturn:
        """Raise the mistake as one sentence."""
        raise BadValue("the command line", why=message, next_step=_SEE)


def parse(arguments: Sequence[str], options: Mapping[str, Mapping[str, Any]]) -> argparse.Namespace:
    """Parse torchrun's arguments and ours; ``options`` maps each of our flags to what ``add_argument`` needs.

    Raises:
        BadValue: the arguments do not fit.
    """
    parser = torchrun.get_args_parser()
    parser.__class__ = Parser
    parser.prog = "holdfast run"
    group = parser.add_argument_group("holdfast")
    ours = [group.add_argument(flag, **given) for flag, given in options.items()]
    _keep_abbreviations(parser, ours)
    return parser.parse_args(list(arguments))


def _keep_abbreviations(parser: argparse.ArgumentParser, ours: Sequence[argparse.Action]) -> None:
    """An abbreviation that torchrun accepts (``--re``) must not become ambiguous through an option of ours."""
    find = getattr(parser, "_get_option_tuples", None)
    if find is None:
        return

    def theirs_first(text: str) -> list[Any]:
        matches = find(text)
        return [match for match in matches if match[0] not in ours] or matches

    vars(parser)["_get_option_tuples"] = theirs_first


def least_nodes(given: argparse.Namespace) -> int:
    """With how many nodes the job may go on: MIN of ``--nnodes MIN:MAX``; all where they meet by their ranks."""
    least, most = torchrun.parse_min_max_nnodes(given.nnodes)
    return int(most if given.rdzv_backend == "static" else least)


def check(given: argparse.Namespace) -> None:
    """Find mistakes that would else show up once a worker, or not at all.

    Raises:
        UsageError: a script that is not there, or numbers that cannot be.
    """
    script = str(given.training_script)
    if given.no_python:
        if shutil.which(script) is None:
            raise MissingFile(script, why="there is no such program, or it may not be executed")
    elif not given.module and not Path(script).exists():
        raise MissingFile(script)
    try:
        least, most = torchrun.parse_min_max_nnodes(given.nnodes)
        workers = local_world_size(given)
    except (ValueError, RuntimeError) as error:
        raise BadValue("--nnodes or --nproc-per-node", why=str(error), next_step=_SEE) from error
    wanted = (("--nnodes", least, 1), ("--nproc-per-node", workers, 1), ("--max-restarts", given.max_restarts, 0))
    for name, value, lowest in wanted:
        if value < lowest:
            raise BadValue(name, why=f"{value} is less than {lowest}", next_step="give a larger number")
    shown_ranks(given)
    if most < least:
        raise BadValue("--nnodes", why=f"{given.nnodes} begins with the larger number", next_step="write MIN:MAX")


def local_world_size(given: argparse.Namespace) -> int:
    """Workers on this node, torchrun's ``auto``, ``gpu`` and ``cpu`` worked out. Raises ValueError as torchrun does."""
    return int(torchrun.determine_local_world_size(given.nproc_per_node))


def behind_bootstrap(arguments: Sequence[str]) -> tuple[str, ...]:
    """The interpreter's arguments for a worker (``-u [-m] script …``) with our bootstrap in front of the script."""
    return (arguments[0], "-m", BOOTSTRAP, *arguments[1:])


# Logs


def keep_logs(given: argparse.Namespace, folder: Path) -> RunLogs | None:
    """The logs of a run under ``folder``; None where the user arranged them (``--tee``, ``--log-dir``, ...)."""
    own = given.log_dir is not None or given.tee != "0" or given.redirects != "0"
    if own or getattr(given, "logs_specs", None):
        return None
    given.log_dir = str(folder)  # torch would make a folder in /tmp that nobody uses
    return RunLogs(folder, shown_ranks(given))


def shown_ranks(given: argparse.Namespace) -> frozenset[int] | None:
    """The local ranks whose output is shown on the terminal (``--local-ranks-filter``); None: all.

    Raises:
        BadValue: it is no list of numbers.
    """
    chosen = str(getattr(given, "local_ranks_filter", "") or "")
    try:
        return frozenset(int(rank) for rank in chosen.split(",")) if chosen else None
    except ValueError as error:
        why = f"{chosen!r} is no list of numbers"
        raise BadValue("--local-ranks-filter", why=why, next_step="write 0,1,2") from error


class RunLogs(LogsSpecs):
    """Each rank's output in a folder of its own, ``generation0/rank2/stdout.log``, and on the terminal as well."""

    def __init__(self, folder: Path, shown: frozenset[int] | None) -> None:
        super().__init__(log_dir=str(folder))
        self._folder = folder
        self._shown = shown

    @property
    def root_log_dir(self) -> str:
        """The folder of all generations."""
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the folders for one start of the workers. ``envs`` are their environments by local rank."""
        generation = self._make_folder(envs[0].get("TORCHELASTIC_RESTART_COUNT", "0"))
        folders = {local_rank: generation / f"rank{variables['RANK']}" for local_rank, variables in envs.items()}
        for local_rank, folder in folders.items():
            folder.mkdir()
            envs[local_rank]["TORCHELASTIC_ERROR_FILE"] = str(folder / "error.json")
        out, err, errors = (
            {local_rank: str(folder / name) for local_rank, folder in folders.items()}
            for name in ("stdout.log", "stderr.log", "error.json")
        )
        made = LogsDest(out, err, self._only_shown(out), self._only_shown(err), errors)
        for name in ("filtered_stdout", "filtered_stderr"):  # what --duplicate-stdout-filters asks for
            if hasattr(made, name):
                setattr(made, name, str(generation / f"{name}.log"))
        return made

    def _only_shown(self, files: dict[int, str]) -> dict[int, str]:
        return {rank: path for rank, path in files.items() if self._shown is None or rank in self._shown}

    def _make_folder(self, restarts: str) -> Path:
        """A change of members starts the workers anew without a restart being counted."""
        folder, again = self._folder / f"generation{restarts}", 0
        while True:
            try:
                folder.mkdir(parents=True)
            except FileExistsError:  # by now: agents of several hosts may share the folder above
                again += 1
                folder = self._folder / f"generation{restarts}.{again}"
            else:
                return folder


class CompletedLogs(LogsSpecs):
    """Other logs, on the way to which the workers' environments are completed: torch hands them out nowhere else."""

    def __init__(self, inner: LogsSpecs, complete: Callable[[dict[str, str]], None]) -> None:
        super().__init__(log_dir=inner.root_log_dir)
        self._inner = inner
        self._complete = complete

    @property
    def root_log_dir(self) -> str:
        """The folder of the other logs."""
        return self._inner.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete the environments, then arrange the logs."""
        for variables in envs.values():
            self._complete(variables)
        return self._inner.reify(envs)

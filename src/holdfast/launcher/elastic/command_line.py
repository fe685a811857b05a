"""torchrun's command line with our options added, checks before the launch, and the log files.

torchrun's own parser parses the arguments, and its ``run`` interprets them. Tested with torch
2.13.0; attributes that other versions since 2.4 may lack are read with ``getattr``.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NoReturn

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.api import LogsDest

from holdfast.core import settings
from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.text import os_error_reason

BOOTSTRAP = "holdfast.recorder.bootstrap"
_SEE_HELP = "see holdfast run --help"
#: After ``holdfast run python train.py`` or ``holdfast run torchrun train.py``.
_NAME_SCRIPT = "{subject} is a program: name the script itself, `holdfast run [OPTIONS] train.py`"
_SAVE_IT = "save it to a file"


class Parser(argparse.ArgumentParser):
    """Raises an error instead of printing torchrun's usage, which fills two screens."""

    def error(self, message: str) -> NoReturn:
        """Raise InvalidValue."""
        raise InvalidValue("the command line", why=message, next_step=_SEE_HELP)


def parse_run_options(
    arguments: Sequence[str], options: Mapping[str, Mapping[str, Any]]
) -> argparse.Namespace:
    """Parse torchrun's arguments and ours.

    ``options`` maps each of our flags to its arguments of ``add_argument``. The result also has
    ``launch_options``, the words before the script.

    Raises:
        InvalidValue: the arguments are invalid.
    """
    parser = torchrun.get_args_parser()
    parser.__class__ = Parser
    parser.prog = "holdfast run"
    group = parser.add_argument_group("holdfast")
    own_actions = [group.add_argument(flag, **settings) for flag, settings in options.items()]
    _keep_abbreviations(parser, own_actions)
    parsed = parser.parse_args(list(arguments))
    parsed.launch_options = _words_before_script(arguments, parsed)
    return parsed


def _words_before_script(arguments: Sequence[str], parsed: argparse.Namespace) -> list[str]:
    words = list(arguments[: len(arguments) - len(parsed.training_script_args)])
    while words and words.pop() != parsed.training_script:
        pass  # argparse drops "--" between the script and its arguments
    return [word for word in words if word != "--"]


def _keep_abbreviations(
    parser: argparse.ArgumentParser, own_actions: Sequence[argparse.Action]
) -> None:
    """Keep torchrun's abbreviations (``--re``) unambiguous despite our options."""
    find_matches = getattr(parser, "_get_option_tuples", None)
    if find_matches is None:
        return

    def prefer_torchrun(text: str) -> list[Any]:
        matches = find_matches(text)
        return [match for match in matches if match[0] not in own_actions] or matches

    vars(parser)["_get_option_tuples"] = prefer_torchrun


def min_nodes(options: argparse.Namespace) -> int:
    """Return MIN of ``--nnodes MIN:MAX``; a static rendezvous needs all nodes."""
    least, most = torchrun.parse_min_max_nnodes(options.nnodes)
    return int(most if options.rdzv_backend == "static" else least)


def max_nodes(options: argparse.Namespace) -> int:
    """Return MAX of ``--nnodes MIN:MAX``."""
    return int(torchrun.parse_min_max_nnodes(options.nnodes)[1])


def check_options(options: argparse.Namespace) -> None:
    """Find errors that would otherwise appear once per worker, or not at all.

    Raises:
        UsageError: the script does not exist, or a number is invalid.
    """
    _check_script(options)
    try:
        least, most = torchrun.parse_min_max_nnodes(options.nnodes)
        workers = local_world_size(options)
    except (ValueError, RuntimeError) as error:
        raise InvalidValue(
            "--nnodes or --nproc-per-node", why=str(error), next_step=_SEE_HELP
        ) from error
    for name, value, minimum in (
        ("--nnodes", least, 1),
        ("--nproc-per-node", workers, 1),
        ("--max-restarts", options.max_restarts, 0),
    ):
        if value < minimum:
            raise InvalidValue(
                name, why=f"{value} is less than {minimum}", next_step="use a larger number"
            )
    parse_shown_ranks(options)
    if most < least:
        raise InvalidValue(
            "--nnodes",
            why=f"in {options.nnodes}, the first number is larger than the second",
            next_step="use MIN:MAX",
        )


def _check_script(options: argparse.Namespace) -> None:
    """Find a script that no worker could run. Raises UsageError."""
    script = str(options.training_script)
    file = Path(script)
    if options.no_python:
        if options.module:
            why = "--no-python and --module exclude each other"
            raise InvalidValue("the command line", why=why, next_step="remove one of them")
        if shutil.which(script) is None:
            step = f"remove --no-python, or make it executable and name it ./{script}"
            raise MissingFile(
                script,
                why="no such program, or it is not executable",
                next_step=step if file.is_file() and "/" not in script else None,
            )
    elif options.module:
        _check_module(script)
    elif script == "-" or (file.exists() and not file.is_file() and not file.is_dir()):
        raise MissingFile(
            script, why="it is not a file, and every rank reads the script", next_step=_SAVE_IT
        )
    elif not file.exists():
        is_program = "/" not in script and shutil.which(script) is not None
        raise MissingFile(script, next_step=_NAME_SCRIPT if is_program else None)
    elif file.is_dir() and not (file / "__main__.py").exists():
        raise MissingFile(script, why="it is a folder without __main__.py")
    elif file.is_file() and _starts_with(file, b"\x7fELF"):
        raise MissingFile(script, why="it is a binary program", next_step="add --no-python")


def _check_module(name: str) -> None:
    """Find the package of a module as the workers will, unless they run another interpreter."""
    package = name.partition(".")[0]
    if "PYTHON_EXEC" in settings.current_environment() or package in sys.builtin_module_names:
        return
    if PathFinder.find_spec(package, [str(Path.cwd()), *sys.path]) is None:
        raise MissingFile(
            name, why="there is no such module", next_step="check the name, PYTHONPATH and folder"
        )


def _starts_with(file: Path, magic: bytes) -> bool:
    try:
        with file.open("rb") as content:
            return content.read(len(magic)) == magic
    except OSError as error:
        raise MissingFile(str(file), why=os_error_reason(error)) from error


def local_world_size(options: argparse.Namespace) -> int:
    """Return the number of workers on this node; evaluates ``auto``, ``gpu`` and ``cpu``.

    Raises:
        ValueError: as torchrun.
    """
    return int(torchrun.determine_local_world_size(options.nproc_per_node))


def insert_bootstrap(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return a worker's interpreter arguments (``-u [-m] script …``) with our bootstrap first."""
    return (arguments[0], "-m", BOOTSTRAP, *arguments[1:])


# Logs


def has_own_logs(options: argparse.Namespace) -> bool:
    """Return whether the user chose where the output goes: torch then handles it."""
    chosen = options.log_dir is not None or options.tee != "0" or options.redirects != "0"
    return chosen or bool(getattr(options, "logs_specs", None))


def configure_logs(
    options: argparse.Namespace, folder: Path, relayed: Collection[str] = ()
) -> RunLogs | None:
    """Return log files in ``folder``; None if the user set ``--tee``, ``--log-dir`` or similar.

    ``relayed``: "stdout" and "stderr" if the terminal's relay shows them.
    """
    if has_own_logs(options):
        return None
    options.log_dir = str(folder)  # otherwise torch creates an unused folder in /tmp
    return RunLogs(folder, parse_shown_ranks(options), relayed)


def parse_shown_ranks(options: argparse.Namespace) -> frozenset[int] | None:
    """Return the local ranks whose output is printed (``--local-ranks-filter``); None: all.

    Raises:
        InvalidValue: it is not a list of numbers.
    """
    text = str(getattr(options, "local_ranks_filter", "") or "")
    try:
        return frozenset(int(rank) for rank in text.split(",")) if text else None
    except ValueError as error:
        why = f"{text!r} is not a list of numbers"
        raise InvalidValue("--local-ranks-filter", why=why, next_step="use e.g. 0,1,2") from error


class RunLogs(LogsSpecs):
    """Each rank's output in its folder ``generation0/rank2/`` and on the terminal."""

    def __init__(
        self, folder: Path, shown: frozenset[int] | None, relayed: Collection[str] = ()
    ) -> None:
        super().__init__(log_dir=str(folder))
        self._folder = folder
        self._shown = shown
        self._relayed = relayed

    @property
    def root_log_dir(self) -> str:
        """Return the folder of all generations."""
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Create the folders for one start of the workers; ``envs`` by local rank."""
        generation = self._create_folder(envs[0].get("TORCHELASTIC_RESTART_COUNT", "0"))
        folders = {
            local_rank: generation / f"rank{variables['RANK']}"
            for local_rank, variables in envs.items()
        }
        for local_rank, folder in folders.items():
            folder.mkdir()
            envs[local_rank]["TORCHELASTIC_ERROR_FILE"] = str(folder / "error.json")
        out, err, errors = (
            {local_rank: str(folder / name) for local_rank, folder in folders.items()}
            for name in ("stdout.log", "stderr.log", "error.json")
        )
        shown_out, shown_err = (
            {} if name in self._relayed else self._select_shown(files)
            for name, files in (("stdout", out), ("stderr", err))
        )
        logs = LogsDest(out, err, shown_out, shown_err, errors)
        for name in ("filtered_stdout", "filtered_stderr"):  # for --duplicate-stdout-filters
            if hasattr(logs, name):
                setattr(logs, name, str(generation / f"{name}.log"))
        return logs

    def _select_shown(self, files: dict[int, str]) -> dict[int, str]:
        return {
            rank: path for rank, path in files.items() if self._shown is None or rank in self._shown
        }

    def _create_folder(self, restarts: str) -> Path:
        """Create the generation's folder; a suffix tells apart starts with the same count.

        Nodes that join or leave start the workers again without counting a restart, and agents of
        several hosts may share the parent folder.
        """
        folder, suffix = self._folder / f"generation{restarts}", 0
        while True:
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                suffix += 1
                folder = self._folder / f"generation{restarts}.{suffix}"
            else:
                return folder


class EnvironmentLogs(LogsSpecs):
    """Wraps other logs to complete the workers' environments, which torch exposes nowhere else."""

    def __init__(self, inner: LogsSpecs, complete: Callable[[dict[str, str]], None]) -> None:
        super().__init__(log_dir=inner.root_log_dir)
        self._inner = inner
        self._complete = complete

    @property
    def root_log_dir(self) -> str:
        """Return the folder of the wrapped logs."""
        return self._inner.root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Complete the environments, then create the logs."""
        for variables in envs.values():
            self._complete(variables)
        return self._inner.reify(envs)

"""Scans files and folders for variables that they set, each file with the parser of its kind.

Nothing is run. Unreadable files are listed in ``unseen``; values only known at run time are None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.core.errors import MissingFile
from holdfast.host.launch_files import python_source, shell, text_files, yaml_text
from holdfast.host.launch_files.shell import ShellUnreadable
from holdfast.host.variable_sources import DEEPSPEED_FILE, VariableSetting

MAX_BYTES = 1 << 20
MAX_FILES = 20_000
#: Large folders without launch scripts.
_SKIPPED_FOLDERS = frozenset(
    """
    .git .hg node_modules __pycache__ .venv venv site-packages .mypy_cache .ruff_cache .tox wandb
    holdfast-runs
    """.split()
)
_SHELLS = ("sh", "bash", "zsh", "ksh", "dash", "env -S bash")


class ScanResult(msgspec.Struct, frozen=True):
    """The variables by file and line, the number of files read, and the unreadable ones.

    ``without_launch``: the given paths, readable or not, in which nothing sets a variable or starts
    a job.
    """

    settings: tuple[VariableSetting, ...]
    files: int
    unseen: tuple[str, ...]
    without_launch: tuple[str, ...] = ()


def scan_folder(paths: Sequence[Path]) -> ScanResult:
    """Read files, and all files below folders.

    Raises:
        MissingFile: a path does not exist.
    """
    settings: list[VariableSetting] = []
    unseen: list[str] = []
    count = 0
    known = set[Path]()
    with_launch = set[Path]()
    for path in paths:
        for file in chain(_files(path, unseen), _deepspeed_files(settings, known)):
            if file in known:
                continue
            known.add(file)
            try:
                found = _read(file, is_named=file == path)
            except OSError as error:
                unseen.append(f"{file}: {error.strerror}")
            except (ShellUnreadable, ValueError) as error:
                unseen.append(f"{file}: {error}")
            else:
                if found is None:
                    continue
                count += 1
                settings += found.settings
                if found.settings or found.starts_job:
                    with_launch.add(path)
    without_launch = tuple(str(path) for path in paths if path not in with_launch)
    return ScanResult(tuple(settings), count, tuple(unseen), without_launch)


def _deepspeed_files(
    settings: Sequence[VariableSetting], known: AbstractSet[Path]
) -> Iterator[Path]:
    """Yield unread files of variables for DeepSpeed's launcher next to scripts that start it."""
    origins = (setting.origin for setting in settings if setting.sender is not None)
    for origin in dict.fromkeys(origins):
        file = Path(origin).parent / DEEPSPEED_FILE
        if file not in known and file.is_file():
            yield file


def reader(name: str, first_line: str) -> Callable[[str, str], Iterator[VariableSetting]] | None:
    """Return the parser for a file, by its name and first line; None if there is none."""
    lowered = name.casefold()
    ending = lowered.rpartition(".")[2] if "." in lowered else ""
    if lowered.startswith(("dockerfile", "containerfile")) or ending in ("dockerfile", "def"):
        return shell.read_dockerfile
    if lowered in (DEEPSPEED_FILE, ".env", "nccl.conf", ".nccl.conf") or ending in ("env", "conf"):
        return shell.read_pairs
    by_ending: Mapping[str, Callable[[str, str], Iterator[VariableSetting]]] = {
        "py": python_source.read_python,
        "yaml": yaml_text.read_yaml,
        "yml": yaml_text.read_yaml,
        "json": yaml_text.read_json,
        **dict.fromkeys(("md", "markdown", "mdx", "qmd"), text_files.read_markdown),
        **dict.fromkeys(
            ("sh", "bash", "zsh", "slurm", "sbatch", "job", "pbs", "lsf", "sub", "batch"),
            shell.read_shell,
        ),
    }
    if ending in by_ending:
        return by_ending[ending]
    if first_line.startswith("#!"):
        program = first_line[2:].rpartition("/")[2].strip()
        if program.split()[-1:] and program.split()[-1].startswith("python"):
            return python_source.read_python
        if (
            program.removeprefix("env ").split()[:1]
            and program.removeprefix("env ").split()[0] in _SHELLS
        ):
            return shell.read_shell
    return None


def _files(path: Path, unseen: list[str]) -> Iterator[Path]:
    """Yield regular files only: reading a pipe or a device may not end."""
    if not path.exists():
        raise MissingFile(path)
    if not path.is_dir():
        if path.is_file():
            yield path
        else:
            unseen.append(f"{path}: not a regular file")
        return
    count = 0
    for folder, folders, names in os.walk(path, onerror=lambda error: unseen.append(str(error))):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            if (file := Path(folder, name)).is_file():
                count += 1
                if count > MAX_FILES:
                    unseen.append(f"{path}: more than {MAX_FILES} files; the rest was not read")
                    return
                yield file


class _FileContent(NamedTuple):
    settings: list[VariableSetting]
    starts_job: bool


def _read(file: Path, *, is_named: bool) -> _FileContent | None:
    """Return what a file sets; None for other files of a folder than scripts and texts.

    A file that is named itself is read in any case.
    """
    with file.open("rb") as opened:
        start = opened.read(256)
        read = reader(file.name, start.split(b"\n")[0].decode(errors="replace"))
        if read is None and not is_named and ("." in file.name or b"\0" in start):
            return None
        content = start + opened.read(MAX_BYTES + 1 - len(start))
    if not content.strip() and is_named:
        raise ShellUnreadable("the file is empty")
    if len(content) > MAX_BYTES:
        raise ShellUnreadable(f"larger than {MAX_BYTES >> 20} MiB")
    if b"\0" in content:
        raise ShellUnreadable("not a text file")
    text = content.decode(errors="replace")
    read = read or text_files.read_text
    settings = list(islice(read(text, str(file)), shell.MAX_SETTINGS + 1))
    if len(settings) > shell.MAX_SETTINGS:
        raise ShellUnreadable(f"more than {shell.MAX_SETTINGS:,} variables; not a launch file")
    return _FileContent(settings, text_files.starts_job(text))

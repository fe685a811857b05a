"""Looks through files and folders for what they set before or in a job: each by the reader of its kind.

Nothing is run. A file that cannot be read is told in ``unseen``; values that only the run will know are None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain, islice
from pathlib import Path

import msgspec

from holdfast.errors import MissingFile
from holdfast.facts.launch_files import python_source, shell, yaml_text
from holdfast.facts.launch_files.shell import Unreadable
from holdfast.facts.variables import DEEPSPEED_FILE, Given

MOST_BYTES = 1 << 20
MOST_FILES = 20_000
#: Folders in which nobody keeps launch scripts, and which are large.
_LEFT_OUT = frozenset({".git", ".hg", "node_modules", "__pycache__", ".venv", "venv", "site-packages", ".mypy_cache",
                       ".ruff_cache", ".tox", "wandb", "holdfast-runs"})  # fmt: skip
_SHELLS = ("sh", "bash", "zsh", "ksh", "dash", "env -S bash")


class Scanned(msgspec.Struct, frozen=True):
    """What was found, in the order of files and lines; how many files were read; and what could not be."""

    given: tuple[Given, ...]
    files: int
    unseen: tuple[str, ...]


def scan(paths: Sequence[Path]) -> Scanned:
    """Read files, and all that are below folders.

    Raises:
        MissingFile: a path is not there.
    """
    given: list[Given] = []
    unseen: list[str] = []
    read = 0
    files, known = _files(paths, unseen), set[Path]()
    for file in chain(files, _sent_besides(given, known)):
        known.add(file)
        try:
            found = _read(file)
        except OSError as error:
            unseen.append(f"{file}: {error.strerror}")
        except (Unreadable, ValueError) as error:
            unseen.append(f"{file}: {error}")
        else:
            read += found is not None
            given += found or ()
    return Scanned(tuple(given), read, tuple(unseen))


def _sent_besides(given: Sequence[Given], known: AbstractSet[Path]) -> Iterator[Path]:
    """Files of variables that DeepSpeed's launcher sends besides, beside scripts that start it, if not read yet."""
    for origin in dict.fromkeys(each.origin for each in given if each.sender is not None):
        file = Path(origin).parent / DEEPSPEED_FILE
        if file not in known and file.is_file():
            yield file


def reader(name: str, first_line: str) -> Callable[[str, str], Iterator[Given]] | None:
    """Who reads a file called so; None where nobody does."""
    lowered = name.casefold()
    ending = lowered.rpartition(".")[2] if "." in lowered else ""
    if lowered.startswith(("dockerfile", "containerfile")) or ending in ("dockerfile", "def"):
        return shell.read_dockerfile
    if lowered in (DEEPSPEED_FILE, ".env", "nccl.conf", ".nccl.conf") or ending in ("env", "conf"):
        return shell.read_pairs
    by_ending: Mapping[str, Callable[[str, str], Iterator[Given]]] = {
        "py": python_source.read,
        "yaml": yaml_text.read,
        "yml": yaml_text.read,
        "json": yaml_text.read_json,
        **dict.fromkeys(("sh", "bash", "zsh", "slurm", "sbatch", "job", "pbs", "lsf", "sub", "batch"), shell.read),
    }
    if ending in by_ending:
        return by_ending[ending]
    if first_line.startswith("#!"):
        program = first_line[2:].rpartition("/")[2].strip()
        if program.split()[-1:] and program.split()[-1].startswith("python"):
            return python_source.read
        if program.removeprefix("env ").split()[:1] and program.removeprefix("env ").split()[0] in _SHELLS:
            return shell.read
    return None


def _files(paths: Sequence[Path], unseen: list[str]) -> Iterator[Path]:
    """Regular files alone: a pipe or a device would never end."""
    count = 0
    for path in paths:
        if not path.exists():
            raise MissingFile(path)
        if not path.is_dir():
            if path.is_file():
                yield path
            else:
                unseen.append(f"{path}: it is no regular file")
            continue
        for folder, folders, names in os.walk(path, onerror=lambda error: unseen.append(str(error))):
            folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
            for name in sorted(names):
                if (file := Path(folder, name)).is_file():
                    count += 1
                    if count > MOST_FILES:
                        unseen.append(f"{path}: more than {MOST_FILES} files; the rest was not read")
                        return
                    yield file


def _read(file: Path) -> list[Given] | None:
    with file.open("rb") as opened:
        start = opened.read(256)
        read = reader(file.name, start.split(b"\n")[0].decode(errors="replace"))
        if read is None:
            return None
        content = start + opened.read(MOST_BYTES + 1 - len(start))
    if len(content) > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES >> 20} MiB")
    if b"\0" in content:
        raise Unreadable("it is no text")
    found = list(islice(read(content.decode(errors="replace"), str(file)), shell.MOST_GIVEN + 1))
    if len(found) > shell.MOST_GIVEN:
        raise Unreadable(f"more than {shell.MOST_GIVEN:,} variables are set in it, as in no launch file")
    return found

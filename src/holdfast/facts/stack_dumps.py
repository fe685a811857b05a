"""Reads files of stacks as people keep them: ``py-spy dump`` as text or JSON, faulthandler's text, of many processes.

The text is taken as hostile, and bounded. py-spy shortens names of files to the package (``torch/fx/graph.py``); what
lies in front is written as ``…`` where it is known to be installed or the standard library.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import msgspec

from holdfast.facts.ranks import Stack
from holdfast.facts.stack_text import (
    MAIN,
    MOST_THREADS,
    SpiedFrame,
    SpiedThread,
    from_faulthandler,
    spied_threads,
    stacks_of,
)
from holdfast.findings import Unknown

#: Processes of one file that are read.
MOST_PROCESSES = 1 << 15
_MOST_CHARACTERS = 1024
#: Lines of one file that are read, and how long one may be; py-spy's own are shorter.
_MOST_LINES, _MOST_LINE = 1 << 20, 4096
#: Lines above a process that are kept: whoever dumps many into one file writes there whose each is.
_MOST_HEADING = 3

_PROCESS = re.compile(r"Process (\d{1,10}): (.*)$")
_PARENT = re.compile(r"Parent Process (\d{1,10}): ")
_THREAD = re.compile(r"Thread (\S{1,40}) \((idle|active)[^)]*\)(?:: \"(.*)\")?\s*$")
_FRAME = re.compile(r" {4}(\S.*) \((.*):(\d{1,9})\)$")
_OUR_LINE = re.compile(r"\s|Python v|Thread |-+$|$")
_LABEL = re.compile(r" *(\d{1,6}): ?")
#: Between two arrays in JSON, one for each process.
_NEXT_ARRAY = re.compile(rb"(?<=\])\s*(?=\[\s*\{)")
_FAULTHANDLER = re.compile(r"(?:Current thread|Thread) (0x[0-9a-fA-F]{1,32})(?: \[.*\])? \(most recent call first\)")

#: Packages of which the text shows no more than the name, and that are nobody's own.
_INSTALLED = frozenset(
    {
        "PIL", "accelerate", "apex", "datasets", "deepspeed", "flash_attn", "fsspec", "functorch", "huggingface_hub",
        "lightning", "numpy", "pandas", "peft", "pytorch_lightning", "ray", "scipy", "sklearn", "tensorboard",
        "tokenizers", "torch", "torchaudio", "torchdata", "torchgen", "torchvision", "tqdm", "transformers", "triton",
        "trl", "vllm", "wandb", "webdataset", "xformers",
    }
)  # fmt: skip


class SampledProcess(msgspec.Struct, frozen=True, gc=False):
    """One process at one moment. ``threads`` begin with the main one.

    ``running`` is True where the system ran the main thread just then, None where nothing tells. ``heading`` is what
    stands above it in the file.
    """

    threads: tuple[Stack, ...]
    pid: int | None = None
    command: str = ""
    heading: str = ""
    parent: int | None = None
    running: bool | None = None


def processes(data: bytes, origin: str) -> list[SampledProcess] | Unknown:
    """The processes in a file of stacks, in its order; one that was dumped twice is there twice."""
    if data.lstrip()[:1] == b"[":
        return _in_json(data, origin)
    text = data.decode("utf-8", errors="replace")
    if _FAULTHANDLER.match(text.lstrip()):
        return _by_faulthandler(text, origin)
    found: list[SampledProcess] = []
    for label, lines in _unlabelled(_lines(text)):
        for heading, section in _sections(lines):
            made = _process(section, "\n".join((*label, *heading)), origin)
            found += [made] if made.threads and len(found) < MOST_PROCESSES else []
    return found or Unknown("it names no thread")


def _lines(text: str) -> list[str]:
    """The lines that say something, without their ends."""
    spoken = (line.rstrip() for line in io.StringIO(text, newline=None) if len(line) < _MOST_LINE)
    return list(islice((line for line in spoken if line), _MOST_LINES))


# ---- py-spy's JSON


def _in_json(data: bytes, origin: str) -> list[SampledProcess] | Unknown:
    found: list[SampledProcess] = []
    for array in _NEXT_ARRAY.split(data)[:MOST_PROCESSES]:
        threads = spied_threads(array)
        if isinstance(threads, Unknown):
            return found or Unknown(f"it is not what py-spy writes ({threads.why})")
        by_process: dict[int | None, list[SpiedThread]] = {}
        for thread in threads:
            by_process.setdefault(thread.pid, []).append(thread)
        found += [_sampled(its, pid, origin) for pid, its in by_process.items()]
    return found


def _sampled(threads: Sequence[SpiedThread], pid: int | None, origin: str) -> SampledProcess:
    """A process; its main thread bears its number, or, seen from outside of its container, is known by its name."""
    numbered = (thread for thread in threads if pid is not None and thread.os_thread_id == pid)
    named = (thread for thread in threads if thread.thread_name == MAIN)
    main = next(chain(numbered, named), None)
    stacks = stacks_of(threads, main.os_thread_id if main else None, Stack((), origin=origin))
    return SampledProcess(stacks, pid, running=main.active if main else None)


# ---- py-spy's text


def _unlabelled(lines: list[str]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The lines of each task where ``srun --label`` put its number in front of every line; else all of them."""
    first = next(iter(lines), "")
    if not (label := _LABEL.match(first)) or not _PROCESS.match(first[label.end() :]):
        yield (), lines
        return
    tasks: dict[str, list[str]] = {}
    for line in lines:
        if label := _LABEL.match(line):
            tasks.setdefault(label[1], []).append(line[label.end() :])
    for task, its in tasks.items():
        yield (f"task {task}",), its


def _sections(lines: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """The lines of each process, with the last lines that stand above them and are not of another process."""
    heading: list[str] = []
    above: list[str] = []
    section: list[str] = []
    for line in lines:
        if _PROCESS.match(line):
            if section:
                yield above, section
            above, heading, section = heading[-_MOST_HEADING:], [], [line]
        elif _OUR_LINE.match(line) or _PARENT.match(line):
            section.append(line)
        else:
            heading.append(line[:_MOST_CHARACTERS])
    if section and _PROCESS.match(section[0]):
        yield above, section


def _process(lines: Sequence[str], heading: str, origin: str) -> SampledProcess:
    head = _PROCESS.match(lines[0])
    pid, command = (int(head[1]), head[2][:_MOST_CHARACTERS]) if head else (None, "")
    parent = next((int(above[1]) for line in lines[:4] if (above := _PARENT.match(line))), None)
    threads: list[SpiedThread] = []
    for line in lines[1:]:
        if thread := _THREAD.match(line):
            number = int(thread[1]) if thread[1].isascii() and thread[1].isdigit() else None
            threads.append(SpiedThread(pid, number, thread[3], thread[2] == "active"))
        elif (frame := _FRAME.match(line)) and threads and frame[2].endswith((".py", ">")):  # all else is native code
            threads[-1].frames.append(SpiedFrame(frame[1], _restored(frame[2], frame[1]), int(frame[3])))
        if len(threads) > MOST_THREADS:
            break
    sampled = _sampled(threads, pid, origin)
    return msgspec.structs.replace(sampled, command=command, heading=heading, parent=parent)


def _restored(file: str, function: str) -> str:
    """The name of a file with a mark of where it lies in front, where py-spy left away that it is installed."""
    if file.startswith(("/", "<")):
        return file
    first = file.split("/", 1)[0]
    if first in _INSTALLED and "/" in file:
        return f"…/site-packages/{file}"
    standard = first.removesuffix(".py") in sys.stdlib_module_names and function != "<module>"
    return f"…/lib/python3/{file}" if standard else file


# ---- faulthandler


def _by_faulthandler(text: str, origin: str) -> list[SampledProcess] | Unknown:
    """The newest two dumps of one process; a dump ends where a thread comes again."""
    dumps: list[list[str]] = [[]]
    seen: set[str] = set()
    for line in islice(io.StringIO(text, newline=None), _MOST_LINES):
        if head := _FAULTHANDLER.match(line):
            if head[1] in seen:
                dumps.append([])
                seen.clear()
            seen.add(head[1])
        dumps[-1].append(line)
    found = []
    for lines in dumps[-2:]:
        threads = from_faulthandler("".join(lines))
        if isinstance(threads, Unknown):
            return Unknown(threads.why)
        found.append(SampledProcess(tuple(msgspec.structs.replace(each, origin=origin, time=0.0) for each in threads)))
    return found

"""Parse stack files of many processes: ``py-spy dump`` as text or JSON, and faulthandler's text.

The content is untrusted, and what is read of it is bounded. py-spy shortens file names to the
package (``torch/fx/graph.py``); ``…`` marks the missing prefix of installed packages and the
standard library.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import msgspec

from holdfast.core.findings import Unknown
from holdfast.core.rank_table import ThreadStack
from holdfast.host.processes.stack_text import (
    MAIN_THREAD,
    MAX_THREADS,
    SpiedFrame,
    SpiedThread,
    from_faulthandler,
    spied_threads,
    stacks_of,
)

#: Maximum processes read from one file.
MAX_PROCESSES = 1 << 15
_MAX_HEADING_CHARACTERS = 1024
#: Maximum lines read from one file, and the maximum length of a line; py-spy's are shorter.
_MAX_LINES, _MAX_LINE_CHARACTERS = 1 << 20, 4096
#: Lines kept above a process: files with many processes name the rank there.
_MAX_HEADING_LINES = 3

_PROCESS = re.compile(r"Process (\d{1,10}): (.*)$")
_PARENT = re.compile(r"Parent Process (\d{1,10}): ")
_THREAD = re.compile(r"Thread (\S{1,40}) \((idle|active)[^)]*\)(?:: \"(.*)\")?\s*$")
_FRAME = re.compile(r" {4}(\S.*) \((.*):(\d{1,9})\)$")
_PROCESS_LINE = re.compile(r"\s|Python v|Thread |-+$|$")
_LABEL = re.compile(r" *(\d{1,6}): ?")
#: Separates two JSON arrays, one per process.
_NEXT_ARRAY = re.compile(rb"(?<=\])\s*(?=\[\s*\{)")
_FAULTHANDLER = re.compile(
    r"(?:Current thread|Thread) (0x[0-9a-fA-F]{1,32})(?: \[.*\])? \(most recent call first\)"
)

#: Installed packages that py-spy's text shows without a path.
_INSTALLED = frozenset(
    """
    PIL accelerate apex datasets deepspeed flash_attn fsspec functorch huggingface_hub lightning
    numpy pandas peft pytorch_lightning ray scipy sklearn tensorboard tokenizers torch
    torchaudio torchdata torchgen torchvision tqdm transformers triton trl vllm wandb webdataset
    xformers
    """.split()
)


class SampledProcess(msgspec.Struct, frozen=True, gc=False):
    """One process at one moment; ``threads`` begins with the main thread.

    ``running``: the main thread was on a core; None if the file does not contain it. ``heading`` is
    the text above the process in the file.
    """

    threads: tuple[ThreadStack, ...]
    pid: int | None = None
    command: str = ""
    heading: str = ""
    parent: int | None = None
    running: bool | None = None


def parse_processes(data: bytes, origin: str) -> list[SampledProcess] | Unknown:
    """Return the processes in a stack file, in its order; a process may occur several times."""
    if data.lstrip()[:1] == b"[":
        return _parse_json(data, origin)
    text = data.decode("utf-8", errors="replace")
    if _FAULTHANDLER.match(text.lstrip()):
        return _parse_faulthandler(text, origin)
    found: list[SampledProcess] = []
    for label, lines in _split_tasks(_nonempty_lines(text)):
        for heading, section in _split_processes(lines):
            process = _parse_process(section, "\n".join((*label, *heading)), origin)
            if process.threads and len(found) < MAX_PROCESSES:
                found.append(process)
    return found or Unknown("it contains no thread")


def _nonempty_lines(text: str) -> list[str]:
    source = io.StringIO(text, newline=None)
    lines = (line.rstrip() for line in source if len(line) < _MAX_LINE_CHARACTERS)
    return list(islice((line for line in lines if line), _MAX_LINES))


# ---- py-spy's JSON -----------------------------------------------------------------------------


def _parse_json(data: bytes, origin: str) -> list[SampledProcess] | Unknown:
    found: list[SampledProcess] = []
    for array in _NEXT_ARRAY.split(data)[:MAX_PROCESSES]:
        threads = spied_threads(array)
        if isinstance(threads, Unknown):
            return found or Unknown(f"not py-spy output ({threads.why})")
        by_pid: dict[int | None, list[SpiedThread]] = {}
        for thread in threads:
            by_pid.setdefault(thread.pid, []).append(thread)
        found += [_sampled(of_pid, pid, origin) for pid, of_pid in by_pid.items()]
    return found


def _sampled(threads: Sequence[SpiedThread], pid: int | None, origin: str) -> SampledProcess:
    """Return a process; its main thread has its id, or, seen from outside a container, its name."""
    by_id = (thread for thread in threads if pid is not None and thread.os_thread_id == pid)
    by_name = (thread for thread in threads if thread.thread_name == MAIN_THREAD)
    main = next(chain(by_id, by_name), None)
    stacks = stacks_of(threads, main.os_thread_id if main else None, ThreadStack((), origin=origin))
    return SampledProcess(stacks, pid, running=main.active if main else None)


# ---- py-spy's text -----------------------------------------------------------------------------


def _split_tasks(lines: list[str]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the lines per task if ``srun --label`` prefixed each line; otherwise all of them."""
    first = next(iter(lines), "")
    if not (label := _LABEL.match(first)) or not _PROCESS.match(first[label.end() :]):
        yield (), lines
        return
    tasks: dict[str, list[str]] = {}
    for line in lines:
        if label := _LABEL.match(line):
            tasks.setdefault(label[1], []).append(line[label.end() :])
    for task, of_task in tasks.items():
        yield (f"task {task}",), of_task


def _split_processes(lines: Sequence[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield for each process the last lines above it that belong to no process, and its lines."""
    heading: list[str] = []
    above: list[str] = []
    section: list[str] = []
    for line in lines:
        if _PROCESS.match(line):
            if section:
                yield above, section
            above, heading, section = heading[-_MAX_HEADING_LINES:], [], [line]
        elif _PROCESS_LINE.match(line) or _PARENT.match(line):
            section.append(line)
        else:
            heading.append(line[:_MAX_HEADING_CHARACTERS])
    if section and _PROCESS.match(section[0]):
        yield above, section


def _parse_process(lines: Sequence[str], heading: str, origin: str) -> SampledProcess:
    head = _PROCESS.match(lines[0])
    pid, command = (int(head[1]), head[2][:_MAX_HEADING_CHARACTERS]) if head else (None, "")
    parent = next((int(match[1]) for line in lines[:4] if (match := _PARENT.match(line))), None)
    threads: list[SpiedThread] = []
    for line in lines[1:]:
        if thread := _THREAD.match(line):
            number = int(thread[1]) if thread[1].isascii() and thread[1].isdigit() else None
            threads.append(SpiedThread(pid, number, thread[3], thread[2] == "active"))
        elif threads and (frame := _FRAME.match(line)) and frame[2].endswith((".py", ">")):
            file = _restore_prefix(frame[2], frame[1])  # other files are native code
            threads[-1].frames.append(SpiedFrame(frame[1], file, int(frame[3])))
        if len(threads) > MAX_THREADS:
            break
    sampled = _sampled(threads, pid, origin)
    return msgspec.structs.replace(sampled, command=command, heading=heading, parent=parent)


def _restore_prefix(file: str, function: str) -> str:
    """Return the file name with a mark of its location if py-spy removed an install prefix."""
    if file.startswith(("/", "<")):
        return file
    first = file.split("/", 1)[0]
    if first in _INSTALLED and "/" in file:
        return f"…/site-packages/{file}"
    standard = first.removesuffix(".py") in sys.stdlib_module_names and function != "<module>"
    return f"…/lib/python3/{file}" if standard else file


# ---- faulthandler ------------------------------------------------------------------------------


def _parse_faulthandler(text: str, origin: str) -> list[SampledProcess] | Unknown:
    """Return the newest two dumps of one process; a dump ends where a thread occurs again."""
    dumps: list[list[str]] = [[]]
    seen: set[str] = set()
    for line in islice(io.StringIO(text, newline=None), _MAX_LINES):
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
        stacks = (msgspec.structs.replace(thread, origin=origin, time=0.0) for thread in threads)
        found.append(SampledProcess(tuple(stacks)))
    return found

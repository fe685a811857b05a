"""Parses texts without a known name: commands, Python, and the code blocks of Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from holdfast.host.launch_files import python_source, shell, yaml_text
from holdfast.host.launch_files.shell import ShellUnreadable
from holdfast.host.variable_sources import VariableSetting

_Reader = Callable[[str, str], Iterator[VariableSetting]]
_IMPORT = re.compile(r"^(?:import|from)\s+\w", re.MULTILINE)
_FENCE = re.compile(r"^\s*(`{3,}|~{3,})\s*\{?\.?([\w+-]*)")
_PROMPT = re.compile(r"^(\s*)[$#>%]\s+")
#: Words of a job's start, in scripts, manifests and programs.
_LAUNCH = re.compile(
    r"\b(?:torchrun|torch|accelerate|deepspeed|srun|sbatch|mpirun|mpiexec|horovodrun|holdfast"
    r"|ray|colossalai|lightning|python[\d.]*|docker|kubectl)\b"
)
_BLOCK_READERS: Mapping[str, _Reader] = {
    **dict.fromkeys(("python", "py", "python3"), python_source.read_python),
    **dict.fromkeys(("yaml", "yml"), yaml_text.read_yaml),
    "json": yaml_text.read_json,
    **dict.fromkeys(("dockerfile", "docker"), shell.read_dockerfile),
    **dict.fromkeys(
        ("", "sh", "bash", "zsh", "shell", "console", "shell-session", "slurm", "text", "txt"),
        shell.read_shell,
    ),
}


def starts_job(text: str) -> bool:
    """Return whether the text contains a command or library that starts a job."""
    return _LAUNCH.search(text) is not None


def read_text(text: str, origin: str) -> Iterator[VariableSetting]:
    """Yield what a text of unknown kind sets: a Python program, or lines of a shell."""
    if _IMPORT.search(text):
        try:
            yield from list(python_source.read_python(text, origin))
        except ShellUnreadable:
            pass
        else:
            return
    yield from shell.read_shell(text, origin)


def read_markdown(text: str, origin: str) -> Iterator[VariableSetting]:
    """Yield what the code blocks of a Markdown text set; excerpts that cannot be parsed do not."""
    for language, block in _code_blocks(text):
        if read := _BLOCK_READERS.get(language.casefold()):
            try:
                yield from list(read(block, origin))
            except ShellUnreadable:
                continue


def _code_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield language and lines of each fenced block, after blank lines in place of those before."""
    fence, language, lines = "", "", list[str]()
    for number, line in enumerate(text.splitlines()):
        match = _FENCE.match(line)
        if fence and match and match[1].startswith(fence):
            yield language, "\n".join(lines)
            fence = ""
        elif fence:
            lines.append(_PROMPT.sub(r"\1", line))
        elif match:
            fence, language, lines = match[1], match[2], [""] * (number + 1)
    if fence:
        yield language, "\n".join(lines)

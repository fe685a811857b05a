"""Compile the C++ recorder for the installed torch, and self-test it before a job uses it.

Compiling takes about half a minute, the self-test 2 s, both once per torch release. If either
fails, the Python recorder is used; docs/benchmarks.md gives its overhead.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from holdfast.core import native_extension
from holdfast.recorder import self_test, torch_extension

SOURCES = Path(__file__).parent / "native"


def ensure_built(progress: Callable[[str], None]) -> Path | None:
    """Return the compiled recorder, building it if needed; None on failure.

    The reason goes to ``progress``.
    """
    target = torch_extension.cached_extension("recorder", SOURCES.iterdir())
    if target.is_file():  # stored only after it passed the self-test
        return target
    why: str | None
    try:
        why = _refusal_file(target).read_text(encoding="utf-8")
    except OSError:
        if native_extension.find_compiler() is not None:
            progress(
                f"Compiling the recorder for torch {torch.__version__} (one-time, about 30 s) …"
            )
        why = _build(target)
    if why is None:
        return target
    progress(
        f"{why}; using the Python recorder, which costs as much as TORCH_DISTRIBUTED_DEBUG=DETAIL"
    )
    return None


def _refusal_file(target: Path) -> Path:
    """Return the file that stores why the compiled recorder failed its self-test."""
    return target.with_suffix(".refused")


def _build(target: Path) -> str | None:
    """Compile, test and install the recorder at ``target``; return the reason of a failure."""
    messages: list[str] = []
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Several nodes may share the cache folder.
        with TemporaryDirectory(dir=target.parent) as folder:
            built = torch_extension.build_torch_extension(
                Path(folder) / target.name, SOURCES / "recorder.cpp", messages.append
            )
            if built is None:
                return messages[0]
            failure = self_test.run_self_test(built)
            if failure is None:
                built.replace(target)
                return None
        without = self_test.run_self_test(None)
        if without is not None:
            return f"cannot test the compiled recorder: gloo also fails without it ({without})"
        refusal = _refusal_file(target)
        summary = f"the compiled recorder fails its self-test with torch {torch.__version__}"
        why = f"{summary} ({failure}; delete {refusal} to retry)"
        refusal.write_text(why, encoding="utf-8")
    except OSError as error:
        return f"cannot compile and test the recorder ({error})"
    return why


if __name__ == "__main__":
    print(ensure_built(lambda text: print(text, file=sys.stderr)))  # noqa: T201 - prints its result

"""The C++ recorder for the installed torch, self-tested before a job uses it.

Compiling takes about half a minute, the self-test 2 s, both once per torch release. Without it,
the Python recorder is used; docs/benchmarks.md gives its overhead.
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.recorder import self_test
from holdfast.recorder.torch_extension import Progress, TorchExtension

SOURCES = Path(__file__).parent / "native"
FALLBACK = "this start uses the Python recorder, as costly as TORCH_DISTRIBUTED_DEBUG=DETAIL"


def test_recorder(library: Path) -> str | None:
    """Return why collectives fail with the compiled recorder; None on success.

    Raises:
        OSError: they also fail without it, or the processes could not be started.
    """
    failure = self_test.run_self_test(library)
    without = self_test.run_self_test(None) if failure is not None else None
    if without is not None:
        raise OSError(f"gloo also fails without it: {without}")
    return failure


def recorder_extension() -> TorchExtension:
    """Return the extension that is the C++ recorder."""
    source = SOURCES / "recorder.cpp"
    return TorchExtension("recorder", "C++ recorder", FALLBACK, source, test_recorder)


def ensure_built(progress: Progress) -> Path | None:
    """Return the compiled recorder, building it if needed; None on failure.

    The reason goes to ``progress``.
    """
    return recorder_extension().ensure_built(progress)


if __name__ == "__main__":
    print(ensure_built(lambda text: print(text, file=sys.stderr)))  # noqa: T201 - prints its result

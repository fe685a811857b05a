"""Compile test modules once in a new checkout, not once in each test worker."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest


def compile_share(config: pytest.Config, workers: int, number: int) -> None:
    """Compile one worker's share of the test modules as pytest does, with rewritten assertions.

    All workers import the modules in the same order, so that otherwise each compiles most of them: 16 s
    of CPU time. Only pytest's private functions can do it; without them each worker compiles all.
    """
    with suppress(ImportError, AttributeError, KeyError, TypeError):
        from _pytest.assertion import rewrite

        state = config.stash[rewrite.assertstate_key]
        modules = sorted(Path(config.rootpath, "tests").rglob("test_*.py"))
        for path in modules[number::workers]:
            folder = rewrite.get_cache_dir(path)
            compiled = folder / (path.stem + rewrite.PYC_TAIL)
            if rewrite.try_makedirs(folder) and not rewrite._read_pyc(path, compiled, state.trace):
                with suppress(SyntaxError):  # reported by the import
                    stat, code = rewrite._rewrite_test(path, config)
                    rewrite._write_pyc(state, code, stat, compiled)

"""Run a command of holdfast in the test process, without the start of an interpreter."""

from __future__ import annotations

import io
import os
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

import pytest

from holdfast import cli


def run_holdfast(
    *arguments: object, folder: Path | None = None, **variables: str
) -> CompletedProcess[str]:
    """Return the output of ``holdfast ARGUMENTS`` in a folder, with additional environment variables."""
    out, error = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    command = list(map(str, arguments))
    with (
        patch.dict(os.environ, variables),
        chdir(folder or Path.cwd()),
        redirect_stdout(out),
        redirect_stderr(error),
        pytest.raises(SystemExit) as end,
    ):
        cli.main(command)
    printed = [stream.buffer.getvalue().decode() for stream in (out, error)]
    return CompletedProcess(command, int(end.value.code or 0), *printed)

"""Run the client program of a scheduler: ``sbatch`` or ``kubectl``."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from holdfast.core.errors import MissingFile, SubmissionRefused
from holdfast.core.text import one_line

#: A controller that is down does not answer; its clients retry for longer.
TIMEOUT_S = 60.0


def run_program(words: Sequence[str], text: str, scheduler: str) -> str:
    """Run the program with ``text`` on standard input; return its output without the last newline.

    Raises:
        MissingFile: it is not installed.
        SubmissionRefused: it failed, with its own message.
    """
    try:
        done = subprocess.run(
            words, input=text, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise MissingFile(
            words[0],
            why="there is no such program on PATH",
            next_step="submit on a host of the cluster, or write the file with --write FILE",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SubmissionRefused(
            scheduler, why=f"{words[0]} did not answer within {TIMEOUT_S:.0f} s"
        ) from error
    if done.returncode:
        raise SubmissionRefused(scheduler, why=one_line(_reason(done.stderr, words[0])))
    return done.stdout.strip()


def _reason(errors: str, program: str) -> str:
    """Return the program's message without its repetitive beginning."""
    lines = [
        line.removeprefix(f"{program}: ").removeprefix("error: ")
        for line in errors.splitlines()
        if line.strip()
    ]
    return "; ".join(lines) or f"{program} failed without a message"

"""The process that loads the user's function: a question on stdin, progress and the answer as lines of JSON on stdout.

What the user's code prints goes to stderr, whose last line is told where the process dies.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress

import msgspec

from holdfast.errors import BadValue
from holdfast.runtime.footprint.asking import Answered, Line, Progress, Question, Refusal, Tell


def main() -> None:
    """Answer the one question."""
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Question)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def write(line: Line) -> None:
        answers.write(msgspec.json.encode(line) + b"\n")

    write(Progress("importing torch"))
    try:
        import torch  # noqa: F401, PLC0415 - it may be missing, which is an answer
    except ImportError:
        write(Refusal("", "", "", missing="torch"))
        return
    os.nice(5)
    limits = question.limits
    for what, most in ((resource.RLIMIT_CPU, int(limits.time_s) + 60), (resource.RLIMIT_DATA, limits.memory)):
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most, resource.getrlimit(what)[1]))
    try:
        write(_answer(question, lambda said: write(Progress(said))))
    except BadValue as error:
        write(Refusal(error.subject, error.why, error.next_step))


def _answer(question: Question, tell: Tell) -> Answered:
    import torch  # noqa: PLC0415

    from holdfast.runtime.footprint.describing import describe  # noqa: PLC0415 - they need torch
    from holdfast.runtime.footprint.kernels import as_on_a_gpu  # noqa: PLC0415
    from holdfast.runtime.footprint.loading import build, load, users_errors  # noqa: PLC0415
    from holdfast.runtime.footprint.simulating import simulate  # noqa: PLC0415

    tell(f"loading {question.source}")
    if question.setup is not None:
        with as_on_a_gpu(question.setup):
            function = load(question.source)
            return Answered(simulated=simulate(question.source, function, question.setup, question.memory, tell))
    function = load(question.source)
    with torch.device("meta"):
        module, _ = build(question.source, function)
    with users_errors(question.source, "counting its weights"):
        return Answered(described=describe(module))


if __name__ == "__main__":
    main()

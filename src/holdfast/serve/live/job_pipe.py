"""Asks the job that started this server for the stacks of ranks on other hosts.

The server's standard output carries the questions to the leader's watcher, its standard input the
answers (:mod:`holdfast.watcher.live_port`). Between nodes they travel through the job's store.
"""

from __future__ import annotations

import queue
import secrets
import time
from contextlib import suppress
from typing import BinaryIO

from holdfast.core.findings import Unknown
from holdfast.watcher.agent_messages import (
    StackAnswer,
    StackQuestion,
    UndecodableMessage,
    decode_request,
    encode_message,
)

#: Limit of a question; a terminal waits a second longer.
ANSWER_S = 4.0


class JobPipe:
    """``questions`` and ``answers`` are pipes to and from the watcher."""

    def __init__(self, questions: BinaryIO, answers: BinaryIO) -> None:
        self._questions, self._lines = questions, answers
        self._answers: queue.SimpleQueue[StackAnswer] = queue.SimpleQueue()

    def read_answers(self) -> None:
        """Read until the watcher closes the pipe or dies."""
        for line in self._lines:
            with suppress(UndecodableMessage):
                message = decode_request(line)
                if isinstance(message, StackAnswer):
                    self._answers.put(message)

    def ask(self, rank: int, host: str) -> tuple[str, ...] | Unknown:
        """Return the frames of a rank, innermost first. One question at a time."""
        question = StackQuestion(rank=rank, nonce=secrets.token_hex(8))
        until = time.monotonic() + ANSWER_S
        with suppress(OSError, queue.Empty):
            self._questions.write(encode_message(question))
            self._questions.flush()
            while (left_s := until - time.monotonic()) > 0:
                answer = self._answers.get(timeout=left_s)
                if answer.nonce == question.nonce:  # else that to a question before, too late
                    return Unknown(answer.why) if answer.why else answer.frames
        return Unknown(f"{host or 'its host'} did not answer within {ANSWER_S:g} s")

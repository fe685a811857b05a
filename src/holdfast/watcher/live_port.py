"""Serves the live state while the job runs: `holdfast serve` as a child process of the watcher.

A process of its own, because pages and metrics of large jobs cost CPU time that the watcher needs.
It ends with the watcher, also if that is killed: its standard input closes then.
"""

from __future__ import annotations

import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

from holdfast.core.errors import InvalidValue
from holdfast.watcher.agent_messages import (
    StackAnswer,
    StackQuestion,
    UndecodableMessage,
    decode_reply,
    encode_message,
)

_END_S = 3.0
#: The line that `holdfast serve` prints once it listens.
_LISTENS = re.compile(r"^holdfast: .* at (https?://\S+)$")


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``[HOST:]PORT``.

    Raises:
        InvalidValue: it is not of that form.
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not int(port) < 1 << 16:
        raise InvalidValue(
            "--serve",
            why=f"{text!r} is not [HOST:]PORT",
            next_step="pass a port such as 8765, or 0.0.0.0:8765 for other machines",
        )
    return host.strip("[]") or "127.0.0.1", int(port)


class LivePort:
    """``address`` is ``[HOST:]PORT``; None: nothing is served."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._child: subprocess.Popen[str] | None = None
        self._sentences: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._questions: queue.SimpleQueue[StackQuestion] = queue.SimpleQueue()

    def start(self, run_dir: str) -> None:
        """Serve the run, unless it is served already."""
        if not self._address or self._child is not None:
            return
        host, port = parse_address(self._address)
        options = ("--host", host, "--port", str(port), "--until-eof")
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "holdfast", "serve", run_dir, *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            self._sentences.put(f"the live state is not served: {error.strerror}")
            return
        for read in (self._read, self._read_questions):
            threading.Thread(target=read, args=(self._child,), daemon=True).start()

    def new_sentences(self) -> Iterator[str]:
        """Yield what is to be printed: where it is served, or why it is not."""
        with suppress(queue.Empty):
            while True:
                yield self._sentences.get_nowait()

    def new_questions(self) -> Iterator[StackQuestion]:
        """Yield what the viewers of the page ask about ranks on other hosts."""
        with suppress(queue.Empty):
            while True:
                yield self._questions.get_nowait()

    def answer(self, answer: StackAnswer) -> None:
        """Hand an answer to the server, which bounds the questions that are open."""
        if self._child is not None and self._child.stdin is not None:
            with suppress(OSError):
                self._child.stdin.write(encode_message(answer).decode())
                self._child.stdin.flush()

    def close(self) -> None:
        """End the server. Idempotent."""
        child, self._child = self._child, None
        if child is None or child.stdin is None:
            return
        with suppress(OSError):
            child.stdin.close()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _read_questions(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None  # noqa: S101 - opened above
        with child.stdout as lines:
            for line in lines:
                with suppress(UndecodableMessage):
                    message = decode_reply(line.encode())
                    if isinstance(message, StackQuestion):
                        self._questions.put(message)

    def _read(self, child: subprocess.Popen[str]) -> None:
        """Report the first line of the server; the others go to the watcher's log."""
        assert child.stderr is not None  # noqa: S101 - opened above
        with child.stderr as lines:
            first = lines.readline().strip()
            found = _LISTENS.match(first)
            if found:
                self._sentences.put(f"live page: {found[1]} (in a terminal: holdfast top ADDRESS)")
            elif first:
                sentence = first.removeprefix("holdfast: ")
                self._sentences.put(f"the live state is not served: {sentence}")
            for line in lines:
                sys.stderr.write(line)

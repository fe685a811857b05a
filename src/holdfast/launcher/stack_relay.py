"""Passes questions about the stacks of ranks on other hosts, and their answers, between nodes."""

from __future__ import annotations

from contextlib import suppress

from holdfast.launcher.elastic.generation import Generation, StatusBoard
from holdfast.launcher.watcher_channel import WatcherChannel
from holdfast.watcher.agent_messages import (
    Reply,
    StackAnswer,
    StackQuestion,
    UndecodableMessage,
    decode_request,
    encode_message,
)


class StackRelay:
    """The part of one node, for one generation."""

    def __init__(self) -> None:
        self._known = ("", "")

    def post(self, reply: Reply, board: StatusBoard) -> None:
        """Send what the watcher of this node asks (the leader's) or answers to the other nodes."""
        if isinstance(reply, StackQuestion):
            board.ask(encode_message(reply).decode())
        elif isinstance(reply, StackAnswer):
            board.answer(encode_message(reply).decode())

    def receive(self, current: Generation, watcher: WatcherChannel) -> None:
        """Hand a new answer, or a new question about a rank of this node, to the watcher."""
        known, self._known = self._known, current.board.conversation
        for text in {*self._known} - {*known, ""}:
            with suppress(UndecodableMessage):
                message = decode_request(text.encode())
                if isinstance(message, StackAnswer) or (
                    isinstance(message, StackQuestion)
                    and any(worker.rank == message.rank for worker in current.workers)
                ):
                    watcher.send(message)

"""A server asks the job that started it for the stack of a rank on another host."""

from __future__ import annotations

import os
import threading

import pytest

from holdfast.core.findings import Unknown
from holdfast.serve.live import job_pipe
from holdfast.serve.live.job_pipe import JobPipe
from holdfast.serve.live.stacks import RankStack, read_stack
from holdfast.watcher.agent_messages import StackAnswer, decode_reply, encode_message

FRAMES = ("/job/train.py:41 in train", "/job/train.py:9 in main")


@pytest.fixture
def pipe():
    """Yield the pipe, and the files of the job at its other ends."""
    (asked, ask), (answered, answer) = os.pipe(), os.pipe()
    job = os.fdopen(asked, "rb"), os.fdopen(answer, "wb", buffering=0)
    server = os.fdopen(ask, "wb"), os.fdopen(answered, "rb")
    created = JobPipe(*server)
    reader = threading.Thread(target=created.read_answers)
    reader.start()
    yield created, *job
    for file in (*job, server[0]):
        file.close()
    reader.join(5)
    assert not reader.is_alive()  # it ends with the job
    server[1].close()


def test_the_answer_to_this_question_is_the_stack(pipe, tmp_path):
    server, questions, answers = pipe

    def reply():
        question = decode_reply(questions.readline())
        answers.write(b"no message\n" + encode_message(StackAnswer(nonce="late", frames=("x",))))
        frames = FRAMES if question.rank == 3 else ()
        why = "" if frames else "its process has ended"
        answers.write(encode_message(StackAnswer(nonce=question.nonce, frames=frames, why=why)))

    for rank, expected in (
        (3, RankStack("now", FRAMES)),
        (4, RankStack(why="its process has ended")),
    ):
        thread = threading.Thread(target=reply)
        thread.start()
        assert read_stack(tmp_path, rank, "node7", server.ask) == expected
        thread.join(5)


def test_a_host_that_does_not_answer_is_one_line(pipe, monkeypatch):
    assert job_pipe.ANSWER_S < 5
    monkeypatch.setattr(job_pipe, "ANSWER_S", 0.05)
    assert pipe[0].ask(3, "node7") == Unknown("node7 did not answer within 0.05 s")

"""Secrets among the arguments of a command."""

from __future__ import annotations

import pytest

from holdfast.core.redaction.redact_command import redact_arguments

TOKEN = "hf" + "_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z"


@pytest.mark.parametrize(
    "arguments",
    [
        ["train.py", "--lr", "1e-3", "--tokenizer", "gpt2", "--max-tokens=100", "-m", "--resume"],
        ["/home/janedoe/train.py", "--data=/home/janedoe/data", "model.layers=12"],
    ],
)
def test_ordinary_arguments_and_paths_are_kept(arguments):
    assert redact_arguments(arguments) == tuple(arguments)


@pytest.mark.parametrize(
    ("arguments", "redacted"),
    [
        (["--api-key", "swordfish1"], ["--api-key", "<redacted:password>"]),
        (["--password=swordfish1"], ["--password=<redacted:password>"]),
        (["logger.password=swordfish1"], ["logger.password=<redacted:password>"]),
        (["--x", TOKEN], ["--x", "<redacted:hugging-face-token>"]),
        (["--resume", TOKEN], ["--resume", "<redacted:hugging-face-token>"]),
    ],
)
def test_secrets_are_removed(arguments, redacted):
    assert redact_arguments(arguments) == tuple(redacted)

"""Which handler catches which exception."""

import pytest

from holdfast.lint.abstract_domain.exceptions import catches


@pytest.mark.parametrize(
    ("handler", "raised"),
    [
        ("", "KeyError"),
        ("Exception", "Custom"),
        ("OSError", "FileNotFoundError"),
        ("(KeyError, LookupError)", "IndexError"),
        ("ValueError", "json.JSONDecodeError"),
        ("RuntimeError", "torch.cuda.OutOfMemoryError"),
        ("Custom", "Custom"),
        ("BaseException", "SystemExit"),
    ],
)
def test_a_handler_catches_derived_exceptions(handler, raised):
    assert catches(handler, raised)


@pytest.mark.parametrize(
    ("handler", "raised"),
    [("Exception", "SystemExit"), ("FileNotFoundError", "OSError"), ("ValueError", "Custom")],
)
def test_a_handler_lets_others_pass(handler, raised):
    assert not catches(handler, raised)

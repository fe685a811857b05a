"""The error tree: the diagram matches the classes, and each error is one complete sentence."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from holdfast.core import errors
from holdfast.core.errors import (
    HoldfastError,
    InternalError,
    InvalidValue,
    TraceTruncated,
    UnknownName,
    UsageError,
    WorldError,
)

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, HoldfastError)
]
LEAVES = [kind for kind in CLASSES if not kind.__subclasses__()]


def make_error(kind):
    return (
        kind("preset", "basci", ["basic", "prefetch"])
        if kind is UnknownName
        else kind("/dev/shm/rank0.trace")
    )


def parse_tree():
    """Return (class, parent) pairs of the tree in the module's docstring."""
    parents = {}
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"^    ([│├└─ ]*)(\w+)(?:  |$)", line):
            depth = len(match[1]) // 4
            parents[depth] = match[2]
            yield match[2], parents.get(depth - 1, "Exception")


def test_the_documented_tree_matches_the_classes():
    assert dict(parse_tree()) == {kind.__name__: kind.__base__.__name__ for kind in CLASSES}


def test_every_error_is_in_one_of_the_three_branches():
    assert all(issubclass(kind, (UsageError, WorldError, InternalError)) for kind in LEAVES)


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_is_one_line_that_names_its_subject(kind):
    error = make_error(kind)
    assert "\n" not in str(error)
    assert error.subject in str(error)
    assert "{" not in str(error)


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_can_be_pickled(kind):
    error = make_error(kind)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.exit_status) == (
        type(error),
        str(error),
        error.exit_status,
    )


def test_texts_passed_to_the_constructor_take_precedence():
    error = TraceTruncated(
        "a.trace", why="it ends after 100 of 4096 bytes", next_step="copy it again"
    )
    assert str(error) == (
        "cannot read the trace file a.trace: it ends after 100 of 4096 bytes; copy it again"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_empty_texts_are_omitted():
    assert str(InvalidValue("--nproc-per-node")) == "invalid value for --nproc-per-node"


def test_a_subject_with_braces_or_line_breaks_is_shown_unchanged():
    assert str(InvalidValue("{x}\nZ", why="{subject}")) == "invalid value for {x} Z: {x} Z"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("basci", "did you mean basic?"),
        ("BASIC", "did you mean basic?"),
        ("gpucache", "did you mean gpu-cache?"),
        ("zzz", "choose from basic, gpu-cache and prefetch"),
    ],
)
def test_a_misspelled_name_gets_suggestions(name, hint):
    error = UnknownName("preset", name, ["prefetch", "gpu-cache", "basic"])
    assert str(error) == f"unknown preset {name!r}; {hint}"


def test_an_unknown_name_without_choices():
    assert str(UnknownName("fault", "x", [])) == "unknown fault 'x'; choose from nothing"


def test_exit_statuses():
    assert {kind.exit_status for kind in CLASSES if issubclass(kind, UsageError)} == {2}
    assert TraceTruncated("x").exit_status == 2
    assert errors.RendezvousUnreachable("x").exit_status == 3
    assert InternalError("x").exit_status == 3


def test_an_invalid_object_is_named_directly():
    error = InvalidValue("the fault 'hang'", why="specify step=")
    assert str(error) == "invalid fault 'hang': specify step="
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_an_unknown_option_and_missing_torch():
    error = UnknownName("option", "--max-restart", ["--max-restarts", "--window"])
    assert str(error) == "unknown option --max-restart; did you mean --max-restarts?"
    assert str(errors.MissingExtra("torch")) == (
        "PyTorch is not installed in this environment; install it with: pip install torch"
    )

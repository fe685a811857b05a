"""The error tree: what it draws is what there is, and each error says what, why and what next in one line."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from holdfast import errors
from holdfast.errors import BadValue, BoxTruncated, HoldfastError, InternalError, UnknownName, UsageError, WorldError

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HoldfastError)]
LEAVES = [kind for kind in CLASSES if not kind.__subclasses__()]


def some(kind):
    return kind("preset", "basci", ["basic", "prefetch"]) if kind is UnknownName else kind("/dev/shm/rank0.box")


def drawn():
    """(class, parent) as the docstring of the module draws them."""
    parents = {}
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"^    ([│├└─ ]*)(\w+)(?:  |$)", line):
            depth = len(match[1]) // 4
            parents[depth] = match[2]
            yield match[2], parents.get(depth - 1, "Exception")


def test_the_tree_that_is_drawn_is_the_tree_that_is_there():
    assert dict(drawn()) == {kind.__name__: kind.__base__.__name__ for kind in CLASSES}


def test_every_error_stands_on_one_of_the_three_branches():
    assert all(issubclass(kind, (UsageError, WorldError, InternalError)) for kind in LEAVES)


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_is_one_line_that_names_its_subject(kind):
    error = some(kind)
    assert "\n" not in str(error)
    assert error.subject in str(error)
    assert "{" not in str(error)


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_survives_the_way_between_processes(kind):
    error = some(kind)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.exit_status) == (type(error), str(error), error.exit_status)


def test_what_is_said_at_the_raise_wins():
    error = BoxTruncated("a.box", why="it ends after 100 of 4096 bytes", next_step="copy it again")
    assert str(error) == "cannot read the box a.box: it ends after 100 of 4096 bytes; copy it again"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_nothing_is_added_where_there_is_nothing_to_add():
    assert str(BadValue("--nproc-per-node")) == "--nproc-per-node has a value that cannot be used"


def test_a_subject_with_braces_or_line_breaks_is_shown_as_it_is():
    assert str(BadValue("{x}\nZ", why="{subject}")) == "{x} Z has a value that cannot be used: {x} Z"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("basci", "did you mean basic?"),
        ("BASIC", "did you mean basic?"),
        ("gpucache", "did you mean gpu-cache?"),
        ("zzz", "choose from basic, gpu-cache and prefetch"),
    ],
)
def test_a_misspelt_name_gets_the_near_ones_or_all(name, hint):
    error = UnknownName("preset", name, ["prefetch", "gpu-cache", "basic"])
    assert str(error) == f"there is no preset {name!r}; {hint}"


def test_a_misspelt_name_where_nothing_is_known():
    assert str(UnknownName("fault", "x", [])) == "there is no fault 'x'; choose from nothing"


def test_the_exit_status_says_whose_mistake_it_is():
    assert {kind.exit_status for kind in CLASSES if issubclass(kind, UsageError)} == {2}
    assert BoxTruncated("x").exit_status == 2
    assert errors.RendezvousUnreachable("x").exit_status == 3
    assert InternalError("x").exit_status == 3

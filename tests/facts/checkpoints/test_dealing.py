"""Optimizers that know parameters by number: found where there is one way alone, and never guessed otherwise."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.facts.checkpoints.state_dicts.dealing import deal, deal_unordered

A, B, C = (2, 3), (3,), (5, 5)


def candidates(*shapes):
    return [(f"m{number}.weight", shape) for number, shape in enumerate(shapes)]


def test_all_parameters_in_one_group():
    assert deal(candidates(A, B, A), [[A, B, A]]).groups == (("m0.weight", "m1.weight", "m2.weight"),)


def test_groups_in_any_order():
    found = deal(candidates(A, B, C, B), [[B, B], [A, C]])
    assert found.groups == (("m1.weight", "m3.weight"), ("m0.weight", "m2.weight"))


def test_what_is_not_in_it_is_told_by_shapes():
    assert deal(candidates(A, B, C), [[A, C]]).groups == (("m0.weight", "m2.weight"),)


def test_two_of_one_shape_are_not_guessed():
    found = deal(candidates(A, A, B), [[A, B]])
    assert (found.groups, found.why) == ((), "it has 2 of the model's 3, and their shapes do not tell which")


def test_modules_are_taken_whole_and_that_is_said():
    named = [("tower.weight", A), ("tower.bias", B), ("head.weight", A), ("head.bias", B)]
    assert deal(named, [[A, B]]).why  # the tower, or the head
    named = [("tower.weight", A), ("tower.bias", B), ("norm.weight", B), ("norm.bias", B), ("head.weight", A)]
    found = deal(named, [[A], [B, B]])
    assert found.groups == (("head.weight",), ("norm.weight", "norm.bias"))
    assert found.assumed == ("tower.weight", "tower.bias")


def test_parameters_that_have_no_state_yet_fit_any_shape():
    assert deal(candidates(A, B), [[None, None]]).groups == (("m0.weight", "m1.weight"),)
    assert deal(candidates(A, B, C), [[None, C]]).why


def test_shapes_that_do_not_fit():
    assert "do not fit" in deal(candidates(A, B), [[B, A]]).why
    assert "3 parameters" in deal(candidates(A, B), [[A, B, C]]).why


def test_a_large_model_with_two_groups_is_quick():
    layers = [(f"layers.{n}.{part}", shape) for n in range(200) for part, shape in
              (("q.weight", A), ("k.weight", A), ("norm.weight", B), ("norm.bias", B), ("up.weight", C))]  # fmt: skip
    groups = [[shape for _, shape in layers if len(shape) > 1], [shape for _, shape in layers if len(shape) == 1]]
    found = deal(layers, groups)
    assert found.groups[1] == tuple(name for name, shape in layers if len(shape) == 1)


def test_without_an_order_only_shapes_of_their_own_tell():
    assert deal_unordered(candidates(A, B, C), [[C], [A]]).groups == (("m2.weight",), ("m0.weight",))
    assert deal_unordered(candidates(A, A), [[A, A]]).why


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(0, 2)), max_size=7))
def test_the_answer_is_the_only_one_there_is(given_):
    named = candidates(*(shape for shape, _ in given_))
    groups = [[shape for shape, group in given_ if group == wanted] for wanted in (0, 1)]
    ways = set()
    for choice in itertools.product((0, 1, 2), repeat=len(named)):
        dealt = tuple(tuple(n for (n, _), group in zip(named, choice, strict=True) if group == w) for w in (0, 1))
        shapes = [[shape for (_, shape), group in zip(named, choice, strict=True) if group == w] for w in (0, 1)]
        if shapes == groups:
            ways.add(dealt)
    found = deal(named, groups)
    if found.groups and any(named):
        assert found.groups in ways
    assert bool(found.groups) == (len(ways) == 1)


@pytest.mark.parametrize("groups", [[], [[]]])
def test_no_parameters_at_all(groups):
    assert deal([], groups).why == ""

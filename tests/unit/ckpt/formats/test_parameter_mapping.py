"""Mapping numbered optimizer parameters to names: only unique mappings, never a guess."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ckpt.state_dicts.optimizer_params import map_parameters, map_unordered_parameters
from tests.hypothesis_profiles import examples

A, B, C = (2, 3), (3,), (5, 5)


def candidates(*shapes):
    return [(f"m{number}.weight", shape) for number, shape in enumerate(shapes)]


def test_all_parameters_in_one_group():
    assert map_parameters(candidates(A, B, A), [[A, B, A]]).groups == (
        ("m0.weight", "m1.weight", "m2.weight"),
    )


def test_groups_in_any_order():
    found = map_parameters(candidates(A, B, C, B), [[B, B], [A, C]])
    assert found.groups == (("m1.weight", "m3.weight"), ("m0.weight", "m2.weight"))


def test_excluded_parameters_follow_from_shapes():
    assert map_parameters(candidates(A, B, C), [[A, C]]).groups == (("m0.weight", "m2.weight"),)


def test_ambiguous_shapes_are_not_guessed():
    found = map_parameters(candidates(A, A, B), [[A, B]])
    assert (found.groups, found.why) == (
        (),
        "it has 2 of 3 model parameters; shapes are ambiguous",
    )


def test_whole_modules_are_assumed_and_reported():
    named = [("tower.weight", A), ("tower.bias", B), ("head.weight", A), ("head.bias", B)]
    assert map_parameters(named, [[A, B]]).why  # the tower, or the head
    named = [
        ("tower.weight", A),
        ("tower.bias", B),
        ("norm.weight", B),
        ("norm.bias", B),
        ("head.weight", A),
    ]
    found = map_parameters(named, [[A], [B, B]])
    assert found.groups == (("head.weight",), ("norm.weight", "norm.bias"))
    assert found.assumed == ("tower.weight", "tower.bias")


def test_parameters_without_state_match_any_shape():
    assert map_parameters(candidates(A, B), [[None, None]]).groups == (("m0.weight", "m1.weight"),)
    assert map_parameters(candidates(A, B, C), [[None, C]]).why


def test_shapes_that_do_not_match():
    assert "do not match" in map_parameters(candidates(A, B), [[B, A]]).why
    assert "3 parameters" in map_parameters(candidates(A, B), [[A, B, C]]).why


def test_a_large_model_with_two_groups_is_quick():
    layers = [
        (f"layers.{n}.{part}", shape)
        for n in range(200)
        for part, shape in (
            ("q.weight", A),
            ("k.weight", A),
            ("norm.weight", B),
            ("norm.bias", B),
            ("up.weight", C),
        )
    ]
    groups = [
        [shape for _, shape in layers if len(shape) > 1],
        [shape for _, shape in layers if len(shape) == 1],
    ]
    found = map_parameters(layers, groups)
    assert found.groups[1] == tuple(name for name, shape in layers if len(shape) == 1)


def test_without_order_shapes_must_be_unique():
    assert map_unordered_parameters(candidates(A, B, C), [[C], [A]]).groups == (
        ("m2.weight",),
        ("m0.weight",),
    )
    assert map_unordered_parameters(candidates(A, A), [[A, A]]).why


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.sampled_from([A, B, C]), st.integers(0, 2)), max_size=6))
def test_mapping_is_the_only_solution(parameters):
    named = candidates(*(shape for shape, _ in parameters))
    groups = [[shape for shape, group in parameters if group == index] for index in (0, 1)]
    solutions = set()
    for choice in itertools.product((0, 1, 2), repeat=len(named)):
        assignment = tuple(
            tuple(n for (n, _), group in zip(named, choice, strict=True) if group == w)
            for w in (0, 1)
        )
        shapes = [
            [shape for (_, shape), group in zip(named, choice, strict=True) if group == w]
            for w in (0, 1)
        ]
        if shapes == groups:
            solutions.add(assignment)
    found = map_parameters(named, groups)
    if found.groups and any(named):
        assert found.groups in solutions
    assert bool(found.groups) == (len(solutions) == 1)


@pytest.mark.parametrize("groups", [[], [[]]])
def test_no_parameters_at_all(groups):
    assert map_parameters([], groups).why == ""

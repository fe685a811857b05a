"""Facts along a path: they survive a join only on all sides, and a block undoes its own changes."""

import ast

import pytest

from holdfast.lint.abstract_domain.values import (
    HEAP,
    NO_FACTS,
    TaintKind,
    TaintSource,
    Value,
    constant_value,
    join_values,
)
from holdfast.lint.abstract_state.heap import (
    apply_change,
    counted,
    forget_changes,
    known_facts,
    return_facts,
    set_fact,
    with_facts,
)

YES, NO = Value(const=True), Value(const=False)
KEY, OTHER = ("module", "ready"), ("module", "depth")
RANK = (TaintSource(TaintKind.RANK, "main.py", 1, "dist.get_rank()"),)


def facts_of(value):
    return value.objects[0].facts


def test_a_fact_that_only_one_side_has_is_forgotten():
    joined = join_values((with_facts({KEY: YES, OTHER: NO}), with_facts({OTHER: NO})))
    assert facts_of(joined) == {OTHER: NO}


def test_a_fact_that_differs_by_the_rank_is_tainted():
    joined = join_values((with_facts({KEY: YES}), with_facts({KEY: NO})), RANK)
    assert facts_of(joined)[KEY].content == RANK


def test_setting_nothing_removes_a_fact():
    names = {HEAP: NO_FACTS}
    set_fact(names, KEY, YES)
    assert known_facts(names) == {KEY: YES}
    set_fact(names, KEY, None)
    assert known_facts(names) == {}


def test_a_block_undoes_what_it_changed_and_nothing_else():
    inside, after = with_facts({KEY: YES}), with_facts({})
    assert facts_of(apply_change(with_facts({KEY: YES, OTHER: NO}), inside, after)) == {OTHER: NO}


def test_changes_at_any_time_are_forgotten():
    names = {HEAP: with_facts({KEY: YES, OTHER: NO})}
    forget_changes(names, with_facts({KEY: NO, OTHER: NO}))
    assert known_facts(names) == {OTHER: NO}


def test_returned_facts_replace_those_of_the_caller():
    names = {HEAP: with_facts({KEY: YES}), "self.ready": YES}
    return_facts(names, with_facts({KEY: NO}))
    assert known_facts(names) == {KEY: NO}


@pytest.mark.parametrize(
    ("before", "operator", "after"), [(0, ast.Add(), 1), (2, ast.Add(), 2), (1, ast.Sub(), 0)]
)
def test_counters_stay_small(before, operator, after):
    assert counted(constant_value(before), constant_value(1), operator) == constant_value(after)


def test_only_integers_are_counted():
    assert counted(constant_value("a"), constant_value(1), ast.Add()) is None

"""All rules, and what they make of the partings of a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.facts.code.partings import Parting
from holdfast.findings import Finding
from holdfast.report.lint import order as in_order
from holdfast.rules.code import (
    alarm,
    arguments,
    device_not_set,
    epoch,
    failed_score,
    file_race,
    group_creation,
    group_members,
    guarded_collective,
    guarded_forward,
    guarded_sharded_io,
    hot_sync,
    ignored_limit,
    in_except,
    in_place_save,
    late_variable,
    leaders,
    local_branch,
    local_exit,
    local_rank_as_main,
    local_state,
    long_work,
    lost_handle,
    mean_of_means,
    never_synced,
    not_taken_down,
    order,
    own_weights,
    paired_sends,
    rank_exit,
    root,
    same_draws,
    swallowed,
    thread,
    undecided,
    uneven_loop,
    unread_variable,
    unsafe_load,
    whole_data,
    written_by_all,
)
from holdfast.rules.code.rule import Rule

#: In the order in which they are shown and asked.
RULES: tuple[Rule, ...] = tuple(
    each.RULE
    for each in (
        guarded_collective,
        leaders,
        group_members,
        guarded_sharded_io,
        guarded_forward,
        group_creation,
        rank_exit,
        local_exit,
        local_branch,
        uneven_loop,
        order,
        in_except,
        swallowed,
        alarm,
        arguments,
        root,
        local_state,
        lost_handle,
        never_synced,
        own_weights,
        paired_sends,
        thread,
        long_work,
        late_variable,
        ignored_limit,
        unread_variable,
        epoch,
        whole_data,
        file_race,
        written_by_all,
        failed_score,
        mean_of_means,
        local_rank_as_main,
        unsafe_load,
        in_place_save,
        hot_sync,
        device_not_set,
        not_taken_down,
        same_draws,
        undecided,
    )
)


def judge(partings: Iterable[Parting]) -> Iterator[tuple[Rule, Parting, Finding]]:
    """What the rules say, each with its rule, in the order of files and lines, and of one line the gravest first."""
    claims: dict[tuple[str, int, int], tuple[Rule, Parting]] = {}
    for parting in partings:
        for gravity, rule in enumerate(RULES):
            if rule.wants(parting):
                claims.setdefault((parting.place.file, parting.place.line, gravity), (rule, parting))
                break
    for key in sorted(claims, key=lambda key: (*in_order(*key[:2]), key[2])):
        rule, parting = claims[key]
        yield rule, parting, rule.finding(parting)

"""All rules, and their application to the divergences of a program."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from holdfast.core.findings import Finding
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.branches import (
    collective_in_except,
    local_data_branch,
    local_early_exit,
    long_rank0_work,
    order_divergence,
    raise_before_collective,
    rank_early_exit,
    rank_guarded_collective,
    rank_guarded_sharded_io,
    rank_guarded_wrapped_forward,
    rank_local_state,
    undecided,
    uneven_loop,
)
from holdfast.lint.rules.files import (
    download_by_all_ranks,
    fs_race,
    init_order,
    name_by_process_hash,
    nonatomic_save,
    path_race,
    unread_variable,
    unsafe_load,
    written_by_all_ranks,
)
from holdfast.lint.rules.groups import (
    group_create_divergence,
    group_left_at_exit,
    group_members_left_out,
    ignored_timeout,
    leaders_on_default_group,
    mismatched_args,
    mismatched_root,
    missing_wait,
    no_sync_throughout,
    p2p_deadlock,
    padded_gather,
    signal_alarm_collective,
    thread_collective,
)
from holdfast.lint.rules.rule import Rule
from holdfast.lint.rules.training import (
    device_not_set,
    equal_seeds,
    failed_evaluation_as_zero,
    hot_loop_sync,
    local_rank_as_global,
    mean_of_local_means,
    missing_sampler,
    missing_set_epoch,
    weights_of_rank_seed,
)
from holdfast.report.source_findings import location_sort_key

#: In order of severity, most severe first; the first rule that matches applies.
RULES: tuple[Rule, ...] = tuple(
    module.RULE
    for module in (
        rank_guarded_collective,
        leaders_on_default_group,
        group_members_left_out,
        rank_guarded_sharded_io,
        rank_guarded_wrapped_forward,
        group_create_divergence,
        rank_early_exit,
        local_early_exit,
        local_data_branch,
        uneven_loop,
        order_divergence,
        collective_in_except,
        raise_before_collective,
        signal_alarm_collective,
        mismatched_args,
        padded_gather,
        mismatched_root,
        rank_local_state,
        missing_wait,
        no_sync_throughout,
        weights_of_rank_seed,
        p2p_deadlock,
        thread_collective,
        long_rank0_work,
        init_order,
        ignored_timeout,
        unread_variable,
        missing_set_epoch,
        missing_sampler,
        path_race,
        name_by_process_hash,
        fs_race,
        written_by_all_ranks,
        download_by_all_ranks,
        failed_evaluation_as_zero,
        mean_of_local_means,
        local_rank_as_global,
        unsafe_load,
        nonatomic_save,
        hot_loop_sync,
        device_not_set,
        group_left_at_exit,
        equal_seeds,
        undecided,
    )
)

#: Kinds of divergences by a test, of which one may lead to the next.
_LINKED_KINDS = frozenset({"branch", "exit", "loop"})


def judge_divergences(
    divergences: Iterable[Divergence],
) -> Iterator[tuple[Rule, Divergence, Finding]]:
    """Yield findings with their rules, by file and line; on one line the most severe first."""
    chosen: dict[tuple[str, int, int], tuple[Rule, Divergence]] = {}
    for divergence in divergences:
        for position, rule in enumerate(RULES):
            if divergence.kind in rule.kinds and rule.matches(divergence):
                chosen.setdefault(
                    (divergence.location.file, divergence.location.line, position),
                    (rule, divergence),
                )
                break
    in_order = sorted(chosen, key=lambda key: (*location_sort_key(*key[:2]), key[2]))
    reported = _first_of_chain([chosen[key][1] for key in in_order])
    for key in in_order:
        rule, divergence = chosen[key]
        if id(divergence) in reported:
            yield rule, divergence, rule.finding(divergence)


def _first_of_chain(divergences: Sequence[Divergence]) -> set[int]:
    """Return the ids of the divergences to report: of one cause in one function, the first.

    A loop, a test in it and an exit below may all keep ranks from one collective by the same data.
    Tests of the rank are separate causes.
    """
    chains: dict[Hashable, int] = {}
    for divergence in divergences:
        op, guard = divergence.op, divergence.guard
        key: Hashable = id(divergence)
        if op is not None and divergence.kind in _LINKED_KINDS and not divergence.is_rank_only:
            key = (guard.file, guard.function, op.location, frozenset(divergence.sources))
        chains.setdefault(key, id(divergence))
    return set(chains.values())

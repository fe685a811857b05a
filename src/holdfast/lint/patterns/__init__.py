"""Syntactic patterns that need no execution: files, loops, groups, handles, seeds, averages.

Only functions whose text contains certain words are walked, once; any other module costs only a
text search.

  scopes, call_graph     functions as written; callees and callers
  files, paths           loading and saving of checkpoints
  rank_guards            lines that all ranks run
  shared_names           paths that are the same on all ranks
  file_races             paths that ranks change at the same time
  one_rank_files         paths that one rank changes while others use them
  entry_points           scripts that reach a line, and if one starts several ranks
  epochs                 epoch loops without set_epoch
  process_order          orders and names that depend on the process
  batch_shapes           gathers of tensors padded or selected per batch
  loops                  synchronization in training loops
  micro_batches          gradients that are not averaged before a step
  process_groups         creation and teardown of groups
  handles                async collectives that are never awaited
  handles_in_loops       handles and buffers that the next round of a loop overwrites
  early_uses             buffers of async collectives that are used before the wait
  swallowed_failures     handlers that go on after one rank's failure
  sharded_saves          saves of sharded models on one rank
  seeds                  random seeds over ranks
  averages               means of per-rank means
  sums                   sums over ranks that nothing divides
  repeated_averages      averages divided twice, sums taken twice, means gathered as samples
  loader_workers         streams that all workers of a loader read as a whole
  step_counts            schedules that count the steps of one process
  running_sums           totals that are summed over ranks while they still count
  skipped_modules        parts of a model that a rank's batch leaves out
  skipped_gradients      collectives that ranks without a gradient skip
  device_habits          loads onto GPU 0, tensors on the CPU, CUDA before a fork
  unordered_calls        collectives in __del__ and signal handlers
  changed_models         parameters that change after their model was wrapped
  omitted_groups         collectives without the group of their function
  shards                 sharding by local rank
  by_name                what names alone reveal
  framework_habits       schedules, gathers, hooks and starts of training frameworks
  lost_results           edits, predictions and gradients that a rank loses
  open_keys              collectives for keys that a rank's data added
  failed_scores          failed evaluations that count as 0
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.batch_shapes import find_batch_shapes
from holdfast.lint.patterns.changed_models import find_changed_models
from holdfast.lint.patterns.device_habits import find_device_habits
from holdfast.lint.patterns.epochs import find_missing_epochs
from holdfast.lint.patterns.file_races import find_file_races
from holdfast.lint.patterns.files import find_file_patterns
from holdfast.lint.patterns.framework_habits import find_framework_habits
from holdfast.lint.patterns.handles import HandleAnalysis
from holdfast.lint.patterns.loader_workers import find_loader_workers
from holdfast.lint.patterns.loops import find_loop_patterns
from holdfast.lint.patterns.lost_results import find_lost_results
from holdfast.lint.patterns.monitored_values import (
    find_own_monitors,
    find_unseen_monitors,
)
from holdfast.lint.patterns.omitted_groups import find_omitted_groups
from holdfast.lint.patterns.open_keys import find_open_keys
from holdfast.lint.patterns.process_groups import find_group_patterns
from holdfast.lint.patterns.process_order import find_process_orders
from holdfast.lint.patterns.repeated_averages import find_repeated_averages
from holdfast.lint.patterns.running_sums import find_running_sums
from holdfast.lint.patterns.sampler_groups import find_left_out_samplers, find_sampler_groups
from holdfast.lint.patterns.scopes import Words, iter_scopes
from holdfast.lint.patterns.seeds import find_seed_patterns
from holdfast.lint.patterns.sharded_saves import find_sharded_saves
from holdfast.lint.patterns.shards import find_shard_patterns
from holdfast.lint.patterns.skipped_gradients import find_skipped_gradients
from holdfast.lint.patterns.skipped_modules import find_skipped_modules
from holdfast.lint.patterns.step_counts import find_step_counts
from holdfast.lint.patterns.sums import find_lost_shares
from holdfast.lint.patterns.swallowed_failures import (
    find_swallowed_failures,
    find_swallowed_shares,
)
from holdfast.lint.patterns.unordered_calls import find_unordered_calls
from holdfast.lint.sources.modules import Module, SymbolTable

_ASYNC_WORDS = Words(("async_op", "isend(", "irecv("))
_WORDS = Words(("weights_only", "save(", ".backward(", "init_process_group(", *_ASYNC_WORDS.parts))
#: Words to search in modules that set a seed.
_SEED_WORDS = Words((*_WORDS.parts, "manual_seed", "gather"))


def find_patterns(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield the patterns in each module that mentions torch, and handles lost across functions.

    Tests are left out: they save, load and inspect what they created themselves.
    """
    async_scopes = []
    for module in (module for module in modules if not module.is_test):
        text = module.text
        words = _SEED_WORDS if "manual_seed" in text else _WORDS
        if "torch" in text and words.occur_in(text):
            scopes = list(iter_scopes(module, names, words))
            for find in (
                find_file_patterns,
                find_loop_patterns,
                find_group_patterns,
                find_seed_patterns,
            ):
                with suppress(RecursionError):  # an expression of thousands of terms
                    yield from find(scopes)
            if _ASYNC_WORDS.occur_in(text):
                async_scopes.append(scopes)
    with suppress(RecursionError):
        yield from HandleAnalysis(async_scopes, modules).find_lost(modules)
        yield from find_shard_patterns(modules, names)
        yield from find_omitted_groups(modules, names)
        yield from find_lost_shares(modules, names)
        yield from find_repeated_averages(modules, names)
        yield from find_running_sums(modules, names)
        yield from find_changed_models(modules, names)
        yield from find_skipped_modules(modules, names)
        yield from find_skipped_gradients(modules, names)
        yield from find_unordered_calls(modules, names)
        yield from find_device_habits(modules)
        yield from find_lost_results(modules)
        yield from find_open_keys(modules)
        yield from find_file_races(modules, names)
        yield from find_process_orders(modules)
        yield from find_batch_shapes(modules)
        yield from find_unseen_monitors(modules)
        yield from find_own_monitors(modules)
        yield from find_sampler_groups(modules)
        yield from find_loader_workers(modules)
        yield from find_step_counts(modules)
        yield from find_left_out_samplers(modules)
        yield from find_swallowed_failures(modules)
        yield from find_swallowed_shares(modules)
        yield from find_sharded_saves(modules)
        yield from find_missing_epochs(modules)
        yield from find_framework_habits(modules, names)

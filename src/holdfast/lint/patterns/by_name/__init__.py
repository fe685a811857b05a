"""Habits that names alone reveal, where the interpreter cannot follow values or calls.

Everything here is advice: a test is one of the rank, a call is a collective, and a value is a
rank's own because its name says so.

  names          tests of the rank, local values, collectives, by their names
  called_names   names that a module calls, by its text
  programs       which functions of a program enter collectives
  local_values   values of a rank's own
  guards         collectives under such tests, and exits before them
  devices        GPUs and main processes by the wrong rank
  results        results of a rank's own share
  habits         roots, samplers, names, exceptions, iterators
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.by_name.guards import find_guarded
from holdfast.lint.patterns.by_name.habits import find_habits
from holdfast.lint.patterns.by_name.names import is_distributed
from holdfast.lint.patterns.by_name.programs import NamedCollectives
from holdfast.lint.patterns.by_name.results import find_results
from holdfast.lint.patterns.rank_guards import Unit, iter_units_at
from holdfast.lint.patterns.sharded_saves import saves_whole_models
from holdfast.lint.sources.modules import Module


def find_by_name(modules: Collection[Module], *, strict: bool = False) -> Iterator[Divergence]:
    """Yield the divergences that names reveal, in modules of programs with several ranks.

    ``strict``: also those by tests of which files exist.
    """
    chosen = [module for module in modules if not module.is_test]
    distributed = {module for module in chosen if is_distributed(module.text)}
    if not distributed:
        return
    collectives = NamedCollectives(chosen)
    for module in chosen:
        units: dict[ast.stmt, Unit] = {}
        for unit in iter_units_at(module, collectives.lines(module), units):
            for found in find_guarded(collectives, unit, strict=strict):
                op = found.op
                if op is None or not saves_whole_models(module, op.name, op.location.line):
                    yield found
        if module in distributed:
            yield from find_habits(collectives, module, units)
            yield from find_results(module, units)

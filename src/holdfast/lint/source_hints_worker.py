"""Worker process that lints the source of a failed or hung job.

See :mod:`holdfast.watcher.source_lint`.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from holdfast.core.findings import Finding
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.interpreter.programs import Program
from holdfast.lint.rules.catalogue import RULES, judge_divergences
from holdfast.lint.rules.rule import Rule, RuleTier
from holdfast.lint.sources import files as source_files
from holdfast.lint.sources import program_files
from holdfast.watcher.rules.source_hints import SourceHint
from holdfast.watcher.source_lint import LintOrder

MAX_MEMORY_BYTES = 2 << 30
#: Advice causes no hang and undecided cases explain none; but reading a file too early fails.
_TIERS = frozenset({RuleTier.SURE, RuleTier.DATA, RuleTier.FAULT})
_KINDS = frozenset({"file"})


def find_source_hints(order: LintOrder) -> list[SourceHint]:
    """Return findings in the program of these files that may make ranks diverge."""
    files = program_files.collect_program_files([Path(file) for file in order.files], order.before)
    sources = source_files.read_sources(files)
    divergences = Program(sources.modules, strict=False).analyze()
    return [
        _hint(*match)
        for match in judge_divergences(divergences)
        if match[0].tier in _TIERS or match[1].kind in _KINDS
    ]


def _hint(rule: Rule, divergence: Divergence, finding: Finding) -> SourceHint:
    op = divergence.op
    leads = (
        op is not None and bool(divergence.call_chain) and divergence.call_chain[-1] == op.location
    )
    return SourceHint(
        finding=finding,
        rule=rule.name,
        kind=divergence.kind,
        gravity=RULES.index(rule),
        place=divergence.location,
        guard=divergence.guard,
        call=op.location if op is not None else None,
        creates=op is not None and op.kind == "creation",
        path=divergence.call_chain if leads else (),
    )


def main() -> None:
    """Lint with low priority and limits on CPU time and memory."""
    os.nice(5)  # not lower: polling ranks would starve it
    gc.disable()  # millions of long-lived objects
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=LintOrder)
    for resource_kind, limit in (
        (resource.RLIMIT_CPU, int(order.limit_s) + 1),
        (resource.RLIMIT_AS, MAX_MEMORY_BYTES),
    ):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource_kind, (limit, limit))
    hints = find_source_hints(order)
    sys.stdout.buffer.write(msgspec.json.encode(hints))


if __name__ == "__main__":
    main()

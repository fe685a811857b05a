"""A timeout set by an environment variable that nothing reads."""

from __future__ import annotations

from holdfast.causes.environment.nccl_timeout_ignored import NCCL_TIMEOUT_IGNORED
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.rules.files.unread_variable import audit_finding
from holdfast.lint.rules.rule import Rule, RuleTier


def _matches(divergence: Divergence) -> bool:
    finding = audit_finding(divergence)
    return finding is not None and finding.cause == "nccl-timeout-ignored"


def _message(divergence: Divergence) -> str:
    return (
        f"{divergence.text} has no effect: neither NCCL nor torch reads it; the timeout is that of "
        "the process group"
    )


RULE = Rule(
    name="ignored-time-limit",
    cause=NCCL_TIMEOUT_IGNORED,
    tier=RuleTier.ADVICE,
    what_it_does=(
        "Finds programs that set NCCL_TIMEOUT and similar variables, which look like the timeout "
        "of a collective and which nothing reads."
    ),
    known_misses="A framework that is not visible may read the variable.",
    bad="""\
import os

os.environ["NCCL_TIMEOUT"] = "3600"  # found
dist.init_process_group("nccl")
""",
    good="""\
import datetime

dist.init_process_group("nccl", timeout=datetime.timedelta(hours=1))
""",
    kinds=("set",),
    matches=_matches,
    message=_message,
)

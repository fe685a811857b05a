"""Hypothesis profiles, chosen by ``HYPOTHESIS_PROFILE``; ``make test`` and ``CI`` choose ``ci``.

A property with an explicit number of examples passes ``max_examples=examples(N)``, because an
explicit number overrides the one of the profile.
"""

from __future__ import annotations

import os
from contextlib import suppress

from hypothesis import settings

#: Examples per property if the test sets none, and the factor for explicit numbers.
EXAMPLES = {"default": (100, 1.0), "ci": (50, 0.5), "thorough": (2000, 20.0)}
PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default")


def load() -> None:
    """Register all profiles and load the chosen one; an unknown name raises InvalidArgument.

    No profile has a deadline: on a loaded machine it would fail correct code.
    """
    for name, (count, _) in EXAMPLES.items():
        settings.register_profile(
            name, max_examples=count, deadline=None, derandomize=name == "ci", print_blob=True
        )
    settings.load_profile(PROFILE)
    if PROFILE == "ci":
        _use_no_constants_of_the_sources()


def _use_no_constants_of_the_sources() -> None:
    """Do not let hypothesis draw constants of all imported local modules.

    They depend on what a test worker has imported, so that examples would not be deterministic,
    and each worker parses the sources (5 s of CPU time in a new checkout). Private: without these
    names it draws them.
    """
    with suppress(ImportError, AttributeError):
        from hypothesis.internal.conjecture import providers

        constants = providers._local_constants
        providers._get_local_constants = lambda: constants


def examples(count: int) -> int:
    """Return ``count``, the number of examples in the default profile, scaled to this one."""
    return max(int(count * EXAMPLES[PROFILE][1]), 1)


def describe() -> str:
    """Return the line for pytest's header."""
    return f"hypothesis profile: {PROFILE} ({EXAMPLES[PROFILE][0]} examples)"

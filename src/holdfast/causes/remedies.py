"""Constructors of remedies by their safety, and remedies that several causes share.

Commands contain placeholders in capitals, such as SCRIPT (the training script) and HOST.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core.findings import Remedy, Safety


def automatic(text: str, command: str | None = None) -> Remedy:
    """Return a remedy that is safe at any time."""
    return Remedy(text=text, command=command, safety=Safety.AUTOMATIC)


def disruptive(text: str, command: str | None = None) -> Remedy:
    """Return a remedy that restarts the job or changes its course."""
    return Remedy(text=text, command=command, safety=Safety.DISRUPTIVE)


def by_hand(text: str, command: str | None = None) -> Remedy:
    """Return a remedy that a person must carry out."""
    return Remedy(text=text, command=command, safety=Safety.BY_HAND)


RESTART = disruptive(
    "Restart all ranks from the last checkpoint; `holdfast run` does so up to --max-restarts "
    "times.",
    "holdfast run --on-hang restart --max-restarts 3 SCRIPT",
)
WATCH = disruptive(
    "Run the job under the watcher, which names the rank and its line while it hangs.",
    "holdfast run --on-hang report SCRIPT",
)
DRAIN = by_hand(
    "Take the host out of the pool before the next start; otherwise the scheduler may assign "
    "it again.",
    "scontrol update nodename=HOST state=drain reason='failed in training'",
)
COMPARE_SEQUENCES = disruptive(
    "Let torch compare the calls before each collective, to find the line (a collective then "
    "costs about four times as much CPU, and the checks can hide a race).",
    "export TORCH_DISTRIBUTED_DEBUG=DETAIL",
)
BEFORE = disruptive(
    "Go back to the newest checkpoint in which `holdfast ckpt verify` finds no error.",
    "for one in CHECKPOINTS/*; do holdfast ckpt verify $one; done",
)
SAME_LINE = by_hand(
    "Compare the two calls that the verdict quotes: they have the same number in the group's "
    "sequence and should be the same call."
)


def name_devices(
    remedies: Iterable[Remedy], *, interface: str = "", other_host: str = ""
) -> tuple[Remedy, ...]:
    """Return the remedies with the names of this case in their commands; "" if a name is unknown.

    Their placeholders are INTERFACE and OTHER_HOST.
    """
    names = {"INTERFACE": interface, "OTHER_HOST": other_host}

    def filled(command: str | None) -> str | None:
        for placeholder, name in names.items():
            if command and name:
                command = command.replace(placeholder, shlex.quote(name))
        return command

    return tuple(replace(remedy, command=filled(remedy.command)) for remedy in remedies)

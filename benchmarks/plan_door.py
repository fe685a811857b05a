"""Ask for a plan as a user does: with the options of ``holdfast plan``."""

from __future__ import annotations

from holdfast.cli.plan import command, parse_request
from holdfast.plan.request.plan_request import PlannedRun
from holdfast.plan.request.setup import choose_run


def ask_plan(*arguments: object) -> PlannedRun:
    """Return the run that ``holdfast plan ARGUMENTS`` plans.

    Raises:
        HoldfastError: what the command refuses, with its message.
    """
    context = command.make_context("plan", [str(argument) for argument in arguments])
    return choose_run(parse_request(context.params))

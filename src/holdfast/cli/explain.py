"""``holdfast explain``: describe a cause of failure, a variable or a lint rule, or list causes."""

from __future__ import annotations

import re
import sys

import click

from holdfast.cli.language import language_option


@click.command()
@click.argument("name", metavar="CODE|NAME|RULE|VARIABLE", required=False)
@click.option("--list", "list_all", is_flag=True, help="List all causes by family.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
@language_option
def command(*, name: str | None, list_all: bool, as_json: bool) -> None:
    """Explain a cause of failure (SYNC002 or rank-missing-collective), a lint rule or a variable.

    For a cause: what happens, symptoms, known blind spots, remedies and their risk. For an
    environment variable (NCCL_IB_GID_INDEX): who reads it, when, how, and its effect. For a lint
    rule (uneven-loop): what it finds and misses, with an example.
    """
    from holdfast.causes import FAMILIES, all_causes, find_cause
    from holdfast.report import catalogue

    if list_all == (name is not None):
        raise click.UsageError(
            "name one cause, lint rule or variable, or use --list for all causes"
        )
    if name is not None and _explain_variable(name, as_json=as_json):
        return
    if name is not None and _explain_rule(name, as_json=as_json):
        return
    causes = all_causes() if name is None else (find_cause(name),)
    if as_json:
        from holdfast.report.json import envelope, write_json

        write_json(sys.stdout, envelope("explain", (), None, causes=causes))
    elif name is None:
        catalogue.draw_list(causes, FAMILIES, sys.stdout)
    else:
        catalogue.draw_entry(causes[0], FAMILIES[causes[0].family], sys.stdout)


def _explain_rule(name: str, *, as_json: bool) -> bool:
    """Explain the lint rule of this name.

    Return False if there is none, or if it is a cause's name.

    Raises:
        UnknownName: nothing has this name, and a rule has a similar one.
    """
    from holdfast.causes import all_causes
    from holdfast.core.errors import UnknownName
    from holdfast.lint.rules.catalogue import RULES
    from holdfast.lint.rules.rule import example_program

    normalized = name.replace("_", "-").casefold()
    known = {cause.name for cause in all_causes()} | {
        cause.code.casefold() for cause in all_causes()
    }
    rules = {rule.name: rule for rule in RULES if rule.name not in known}
    rule = rules.get(normalized)
    if rule is None:
        error = UnknownName("cause or rule", name, (*known, *rules))
        if normalized not in known and set(error.near) & rules.keys():
            raise error
        return False
    parts = {
        "what it does": rule.what_it_does,
        "tier": rule.tier.value,
        "example": example_program(rule.bad),
        "use instead": example_program(rule.good),
        "known misses": rule.known_misses,
        "cause": f"{rule.cause.code} {rule.cause.name}: {rule.cause.summary}",
    }
    if as_json:
        from holdfast.report.json import envelope, write_json

        write_json(sys.stdout, envelope("explain", (), None, rule={"name": rule.name} | parts))
    else:
        from holdfast.preflight.env.variable_entry import draw_entry_parts

        draw_entry_parts(f"{rule.name} (lint rule)", parts, sys.stdout)
    return True


def _explain_variable(name: str, *, as_json: bool) -> bool:
    """Explain the variable of this name; return False if it is not a variable's name.

    Raises:
        UnknownName: it looks like a variable and is in no table.
    """
    if not re.fullmatch(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)+|RANK|LOGLEVEL", name) or not (
        name.isupper() or "CCL" in name
    ):
        return False
    from holdfast.causes import all_causes
    from holdfast.core.errors import UnknownName
    from holdfast.core.settings import SETTINGS
    from holdfast.core.variable_table import variable_entries

    if name.replace("_", "-").casefold() in {cause.name for cause in all_causes()}:
        return False
    row = variable_entries().get(name) or SETTINGS.get(name)
    if row is None:
        error = UnknownName("variable", name, {*variable_entries(), *SETTINGS})
        if not error.near:
            error.next_step = (
                "the table covers torch, NCCL, gloo, UCX, libfabric, DeepSpeed and holdfast"
            )
        raise error
    if as_json:
        from holdfast.report.json import envelope, write_json

        write_json(sys.stdout, envelope("explain", (), None, variable=row))
    else:
        from holdfast.preflight.env import variable_entry

        if row.name in variable_entries():
            variable_entry.draw_variable(variable_entries()[row.name], sys.stdout)
        else:
            setting = SETTINGS[row.name]
            parts = {
                "what it does": setting.effect,
                "default": "" if setting.default is None else f"{setting.default}",
                "unit": setting.unit,
                "values": ", ".join(setting.choices),
                "set by": setting.set_by,
                "must be set before": setting.too_late,
                "since": f"{setting.owner} {setting.since}",
            }
            variable_entry.draw_entry_parts(f"{setting.name} ({setting.owner})", parts, sys.stdout)
    return True

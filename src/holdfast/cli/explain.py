"""``holdfast explain``: prints what is known of one cause of failure, variable or rule of lint, or lists all causes."""

from __future__ import annotations

import re
import sys

import click


@click.command()
@click.argument("name", metavar="CODE|NAME|RULE|VARIABLE", required=False)
@click.option("--list", "list_all", is_flag=True, help="List all causes, by family.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
def command(*, name: str | None, list_all: bool, as_json: bool) -> None:
    """Explain a cause of failure, given its code (SYNC002) or its name (rank-missing-collective), a variable, a rule.

    What happens, how it shows before, during and after, what is known to be missed, what to do and how safe that is. Of
    an environment variable (NCCL_IB_GID_INDEX): who reads it, when, as what, and what it does. Of a rule of lint
    (uneven-loop): what it finds and misses, and an example.
    """
    from holdfast.report import catalogue
    from holdfast.rules.causes import CAUSES, FAMILIES, find

    if list_all == (name is not None):
        raise click.UsageError("give the code or the name of one cause, a variable, or --list for all causes")
    if name is not None and _explain_variable(name, as_json=as_json):
        return
    if name is not None and _explain_rule(name, as_json=as_json):
        return
    causes = CAUSES if name is None else (find(name),)
    if as_json:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("explain", (), None, causes=causes))
    elif name is None:
        catalogue.draw_list(causes, FAMILIES, sys.stdout)
    else:
        catalogue.draw_entry(causes[0], FAMILIES[causes[0].family], sys.stdout)


def _explain_rule(name: str, *, as_json: bool) -> bool:
    """Explain the rule of lint called so; False where there is none, or a cause has that name.

    Raises:
        UnknownName: nothing has that name, and a rule has one that is near.
    """
    from holdfast.errors import UnknownName
    from holdfast.rules.causes import CAUSES
    from holdfast.rules.code.catalogue import RULES
    from holdfast.rules.code.rule import program

    wanted = name.replace("_", "-").casefold()
    known = {cause.name for cause in CAUSES} | {cause.code.casefold() for cause in CAUSES}
    rules = {rule.name: rule for rule in RULES if rule.name not in known}
    rule = rules.get(wanted)
    if rule is None:
        error = UnknownName("cause or rule", name, (*known, *rules))
        if wanted not in known and set(error.near) & rules.keys():
            raise error
        return False
    parts = {"what it does": rule.what_it_does, "tier": rule.tier.value, "example": program(rule.bad),
             "use instead": program(rule.good), "known misses": rule.known_misses,
             "cause": f"{rule.cause.code} {rule.cause.name}: {rule.cause.summary}"}  # fmt: skip
    if as_json:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("explain", (), None, rule={"name": rule.name} | parts))
    else:
        from holdfast.report.variable_entry import draw_parts

        draw_parts(f"{rule.name} (a rule of lint)", parts, sys.stdout)
    return True


def _explain_variable(name: str, *, as_json: bool) -> bool:
    """Explain the variable called so; False where the name means no variable.

    Raises:
        UnknownName: it is written as variables are, and in no table.
    """
    if not re.fullmatch(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)+|RANK|LOGLEVEL", name) or not (name.isupper() or "CCL" in name):
        return False
    from holdfast.errors import UnknownName
    from holdfast.rules.causes import CAUSES
    from holdfast.settings import SETTINGS
    from holdfast.variables import table

    if name.replace("_", "-").casefold() in {cause.name for cause in CAUSES}:
        return False
    row = table().get(name) or SETTINGS.get(name)
    if row is None:
        error = UnknownName("variable", name, {*table(), *SETTINGS})
        if not error.near:
            error.next_step = "the table holds what torch, NCCL, gloo, UCX, libfabric, DeepSpeed and holdfast read"
        raise error
    if as_json:
        from holdfast.report.json import envelope, write

        write(sys.stdout, envelope("explain", (), None, variable=row))
    else:
        from holdfast.report import variable_entry

        if row.name in table():
            variable_entry.draw_variable(table()[row.name], sys.stdout)
        else:
            own = SETTINGS[row.name]
            parts = {"what it does": own.effect, "default": "" if own.default is None else f"{own.default}",
                     "unit": own.unit, "values": ", ".join(own.choices), "set by": own.set_by,
                     "too late": f"after {own.too_late}", "since": f"{own.owner} {own.since}"}  # fmt: skip
            variable_entry.draw_parts(f"{own.name} ({own.owner})", parts, sys.stdout)
    return True

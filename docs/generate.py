"""Writes the pages that would otherwise drift from the code: ``python docs/generate.py``, or ``make fix``.

Tests compare the pages with what this would write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from holdfast.actions.chaos.campaign import not_played
from holdfast.actions.chaos.scenarios import SCENARIOS
from holdfast.cli import COMMANDS, root
from holdfast.plan.generate import guide
from holdfast.report import catalogue, reliability
from holdfast.rules.causes import CAUSES, FAMILIES
from holdfast.rules.code.catalogue import RULES
from holdfast.rules.code.rule import Rule, program
from holdfast.settings import PRESETS, SETTINGS, Setting

HERE = Path(__file__).parent
NOTE = "<!-- written by docs/generate.py: change the code, then `make fix` -->\n"
FROM_WHERE = """A value comes from a flag, else from the environment, else from the preset, else it is the default.
A variable that is set to nothing counts as unset.
"""
ON_PRESETS = """`--preset` fills gaps: a variable that you have set stays as it is, also where you set it under another
name. No preset disables peer-to-peer transfers, forces an algorithm or makes the GPU synchronous, because that costs
speed and mends nothing; none sets `NCCL_TIMEOUT`, because nothing reads it.
"""
HEAD = "| variable | default | what it does | whose, since | too late after |\n| --- | --- | --- | --- | --- |\n"
WORKED_OUT = {"{threads}": "cores / workers", "{threads/2}": "cores / workers / 2"}


def settings_page() -> str:
    """The page of variables and presets, from the tables in holdfast.settings."""
    ours = [row for row in SETTINGS.values() if row.name.startswith("HOLDFAST_")]
    parts = [
        "# Settings\n",
        NOTE,
        FROM_WHERE,
        "## Variables that you may set\n",
        _table(row for row in ours if "you" in row.set_by),
        "## Variables that `holdfast run` sets for the workers\n",
        _table(row for row in ours if "you" not in row.set_by),
        "## Other programs' variables that holdfast reads or sets\n",
        _table(row for row in SETTINGS.values() if row not in ours),
        "## Presets\n",
        ON_PRESETS,
        *(_preset(name) for name in PRESETS),
    ]
    return "\n".join(parts).rstrip() + "\n"


def commands_page() -> str:
    """The page of commands: what each prints with --help."""
    blocks = (_command(name, line) for name, (_, line) in COMMANDS.items())
    return "\n".join(["# Commands\n", NOTE, *blocks]).rstrip() + "\n"


def reliability_page() -> str:
    """The page of what `make chaos` found, from the file of results beside this one."""
    known = [not_played(each, "was not played yet") for each in SCENARIOS.values()]
    return reliability.page(reliability.read(HERE / "reliability.json").of(known), NOTE)


def rules_page() -> str:
    """The list of lint's rules."""
    head = "What `holdfast lint` looks for, the gravest first; [lint.md](lint.md) says how.\n"
    rows = "".join(
        f"| [{rule.name}](rules/{rule.name}.md) | [{rule.cause.code}](causes/{rule.cause.name}.md) | {rule.tier} |\n"
        for rule in RULES
    )
    return "\n".join(["# Rules of lint\n", NOTE, head, f"| rule | cause | tier |\n| --- | --- | --- |\n{rows}"])


def rule_page(rule: Rule) -> str:
    """The page of one rule: what it finds and misses, why that matters, and its examples, which are its tests."""
    cause = rule.cause
    parts = {
        "What it does": rule.what_it_does,
        "Why that is bad": f"{cause.what_happens}\n\nMore, and what to do: [{cause.name}](../causes/{cause.name}.md).",
        "Example": f"```python\n{program(rule.bad)}```\n\nThe line with `# found` is the one that is named.",
        "Use instead": f"```python\n{program(rule.good)}```",
        "Known misses": rule.known_misses,
        "Leave it out": f"`# noqa: {rule.name}` on the line, or `--ignore {rule.name}` ([more](../lint.md#options)).",
        "Sources": "\n".join(f"- {each}" for each in cause.sources),
    }
    texts = (f"## {heading}\n\n{text}\n" for heading, text in parts.items() if text)
    return "\n".join([f"# {rule.name}\n", NOTE, f"**{cause.code}** · {rule.tier} · [all rules](../rules.md)\n", *texts])


PAGES: Mapping[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "commands.md": commands_page,
    "reliability.md": reliability_page,
    "migration.md": partial(guide.page, NOTE),
    "rules.md": rules_page,
    **{f"rules/{rule.name}.md": partial(rule_page, rule) for rule in RULES},
    **{f"causes/{page}": write for page, write in catalogue.pages(CAUSES, FAMILIES, NOTE).items()},
}


def _command(name: str, line: str) -> str:
    """The section of a command, and below it those of its own commands."""
    width: dict[str, Any] = {"terminal_width": 100, "max_content_width": 100}
    parent = click.Context(root, info_name="holdfast", **{**root.context_settings, **width})
    command = import_module(COMMANDS[name][0]).command
    parts = [f"## {name}\n\n{line}\n", *_helps(command, name, parent)]
    return "\n".join(parts)


def _helps(command: click.Command, name: str, parent: click.Context) -> Iterator[str]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield f"```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            yield from _helps(below, each, context) if below is not None else ()


def _table(rows: Iterable[Setting]) -> str:
    return HEAD + "".join(
        f"| `{row.name}` | {_default(row)} | {row.effect}{_choices(row)} | {row.owner}, {row.since} | {row.too_late} |"
        "\n"
        for row in rows
    )


def _default(row: Setting) -> str:
    return "" if row.default is None else f"{row.default} {row.unit}".strip()


def _choices(row: Setting) -> str:
    return f" One of {', '.join(f'`{choice}`' for choice in row.choices)}." if row.choices else ""


def _preset(name: str) -> str:
    basic = {} if name == "basic" else PRESETS["basic"]
    rows = "".join(
        f"| `{variable}` | `{WORKED_OUT.get(given.value, given.value)}` | {given.why} |\n"
        for variable, given in PRESETS[name].items()
        if basic.get(variable) != given
    )
    more = "As `basic`, and:\n\n" if basic else ""
    return f"### {name}\n\n{more}| variable | value | why |\n| --- | --- | --- |\n{rows}"


if __name__ == "__main__":
    for page, write in PAGES.items():
        (HERE / page).parent.mkdir(exist_ok=True)
        (HERE / page).write_text(write())

"""The pages of the checklists and of the decision tree, generated from their TOML files."""

from __future__ import annotations

import re

from holdfast.diagnose.guided.tree import Step, read_tree
from holdfast.preflight.checklists.items import CHECKLISTS, PLACEHOLDERS, read_checklist

_INTRODUCTION = """\
`holdfast checklist NAME` runs what a cluster team checks by hand: each item is a check of holdfast,
with its command, its result, and what to do.

```sh
holdfast checklist start --script train.py --checkpoints /data/runs --data '/data/*.tar'
holdfast checklist running --run holdfast-runs
holdfast checklist recovery --logs logs/ --checkpoints /data/runs --html recovery.html
holdfast checklist tools --json | jq '.items[] | select(.state != "ok") | .id'
```

Lines of `holdfast checklist recovery --logs logs/` after a job ran out of memory:

<!-- not run: describes another job -->
```text
checklist recovery: 5 items: 1 ok, 1 absent, 2 error, 1 unknown
    recovery  ✗  The logs contain no failure (cause)
                 Slurm reports that task 1 on gpu-node-0 ran out of host memory
                 Apply the first remedy of its verdict; name the logs of every
                 rank with --logs.
                 $ holdfast diagnose logs/
              ?  Every byte of the newest checkpoint is intact
                 (newest-checkpoint)
                 not checked: needs --checkpoints
                 Move it away, so that the job resumes from the previous one.
                 $ holdfast ckpt verify {{newest_checkpoint}}
              ✓  No process of the failed job holds memory or ports
                 (left-behind)
```

| mark | state | |
| --- | --- | --- |
| ✓ | ok | checked, no problem found |
| • | note | worth knowing |
| ⚠ | warning | slow, or may fail |
| ✗ | error | the item failed |
| ? | unknown | not checked, for the reason shown; never counted as passed |
| - | absent | this host has nothing of the kind (no GPU) |

Exit status: 1 if an item failed, 3 if one is unknown, else 0. Host checks share one run, and
commands run four at a time; `holdfast attach` and `holdfast bench` take most of the time. `--only
ID` runs one item, `--list` shows them. An item whose command needs a value ({values}) is unknown
without it.

## Your own items

```toml
# items.toml: holdfast checklist start --items items.toml
[[item]]
id = "licence"
title = "The licence server answers"
command = "nc -z licences.example.org 27000"
action = "Call the administrator."
```

`command` runs without a shell: status 0 passes, other statuses fail, and one that cannot be started
or does not end within `limit_s` (60) is unknown. For a command of holdfast, statuses 2 and 3 are
unknown. Instead of `command`, `checks = ["names", "firewall"]` names host checks of [`holdfast
check`](check.md). `{{checkpoints}}` and the other values are replaced. An item replaces one of ours
with the same `id`.
"""
_DIAGNOSIS = """\
From what you see to a verdict, in at most four commands. `holdfast diagnose --guided` asks the same
questions and runs the commands; with `--json` it returns the steps that were taken.
[Symptoms](symptoms.md) lists more of what a failing job shows.
"""


def checklists_page(note: str) -> str:
    """Return the page of the checklists."""
    options = ", ".join(f"`{each}`" for each in dict.fromkeys(PLACEHOLDERS.values()))
    sections = ["# Checklists\n", note, _INTRODUCTION.format(values=options)]
    for name, occasion in CHECKLISTS.items():
        rows = "".join(
            f"| {item.title} | `{item.shown_command or item.fact}` | {item.action} |\n"
            for item in read_checklist(name)
        )
        head = "| item | check | if it fails |\n| --- | --- | --- |\n"
        sections.append(f"## {name}: {occasion}\n\n{head}{rows}")
    return "\n".join(sections)


def diagnosis_page(note: str) -> str:
    """Return the page of the decision tree: one section per step, in the order of the file."""
    steps = (_section(step) for step in read_tree().step)
    return "\n".join(["# Five-minute diagnosis\n", note, _DIAGNOSIS, *steps])


def _section(step: Step) -> str:
    title = _title(step.id)
    if step.answers:
        rows = [(each.text, each.next) for each in step.answers]
    else:
        after = {
            "a cause (status 1)": step.found,
            "nothing wrong (0)": step.nothing,
            "no verdict (2, 3)": step.unknown,
        }
        rows = [(text, following) for text, following in after.items() if following]
    command = f"\n```sh\n{step.command}\n```\n" if step.command else ""
    lines = "".join(f"- {text}: {_link(following)}\n" for text, following in rows)
    return f"## {title}\n\n{step.text}\n{command}{chr(10) if lines else ''}{lines}"


def _title(step_id: str) -> str:
    return step_id.replace("-", " ").capitalize()


def _link(step_id: str) -> str:
    title = _title(step_id)
    return f"[{title}](#{re.sub(r'[^a-z0-9]+', '-', title.lower())})"

"""Walk through the decision tree: ask, run the command of a step, and continue by its status."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable

import msgspec

from holdfast.diagnose.guided.tree import FIRST, GuidedTree, Step

#: Asks a question with these answers; returns the answer's number, from 0.
Choose = Callable[[str, tuple[str, ...]], int]
#: Asks for a value by its question.
AskValue = Callable[[str], str]
#: Runs a command; returns its exit status.
RunCommand = Callable[[list[str]], int]
FOUND = 1
INCONCLUSIVE = 3


class WalkedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was taken: with its answer, or its command and exit status."""

    id: str
    text: str
    answer: str | None = None
    command: str | None = None
    status: int | None = None


class GuidedWalk(msgspec.Struct, frozen=True):
    """All steps taken, in order; the last one is the advice."""

    steps: tuple[WalkedStep, ...]

    @property
    def exit_status(self) -> int:
        """Return 1 if a command found a cause, else 3."""
        found = any(step.status == FOUND for step in self.steps)
        return FOUND if found else INCONCLUSIVE


def walk_tree(
    tree: GuidedTree,
    values: dict[str, str],
    choose: Choose,
    ask_value: AskValue,
    run: RunCommand,
    on_step: Callable[[str], None] = lambda _: None,
) -> GuidedWalk:
    """Walk from the first step to an advice; ``values`` are known values of commands.

    ``on_step`` gets a line of each step before it is taken.
    """
    taken: list[WalkedStep] = []
    step: Step | None = tree.steps[FIRST]
    while step is not None:
        walked, following = _take(step, tree, values, (choose, ask_value, run), on_step)
        taken.append(walked)
        step = tree.steps[following] if following else None
    return GuidedWalk(tuple(taken))


def _take(
    step: Step,
    tree: GuidedTree,
    values: dict[str, str],
    actions: tuple[Choose, AskValue, RunCommand],
    on_step: Callable[[str], None],
) -> tuple[WalkedStep, str]:
    """Take one step; return it with the id of the next one, empty at the end."""
    choose, ask_value, run = actions
    if step.answers:
        answer = step.answers[choose(step.text, tuple(each.text for each in step.answers))]
        return WalkedStep(id=step.id, text=step.text, answer=answer.text), answer.next
    on_step(step.text)
    if not step.command:
        return WalkedStep(id=step.id, text=step.text), ""
    for name in step.values:
        if name not in values:
            values[name] = ask_value(tree.values[name])
    words = [word.format(**values) for word in shlex.split(step.command)]
    on_step(f"$ {shlex.join(words)}")
    status = run(words)
    walked = WalkedStep(id=step.id, text=step.text, command=shlex.join(words), status=status)
    return walked, step.after_status(status)


def run_command(words: list[str], *, quiet: bool) -> int:
    """Run a command of holdfast; its output is shown, unless ``quiet``."""
    sys.stdout.flush()
    output = subprocess.DEVNULL if quiet else None
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, check=False).returncode

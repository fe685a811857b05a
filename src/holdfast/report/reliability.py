"""What came of the scenarios of `holdfast chaos run`: the file of results, and the page that is made from it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.errors import BadValue, MissingFile
from holdfast.report.files import write_whole

SCHEMA = "holdfast/chaos/1"
_HEAD = """# Reliability

{note}
`holdfast chaos run` hurts a real job, and holds it against the same job left in peace. A job survived when

- it ended at the right step, with the same weights to the last bit;
- all losses of all its attempts are those of the job in peace, to the last bit;
- of what counts no sample was lost, and none came twice;
- every attempt went on from the newest checkpoint that had been declared and was not damaged since;
- no process was left, and nothing in shared memory;
- every verdict names what was done to it, and the first also to whom;
- `holdfast history` tells of every failure its cause, the evidence, and what was decided.

Where the policy changes what is computed, the job in peace computes the same: it leaves out the same batches, works
them through in as many pieces from the same step on, or is submitted again with as many ranks; what counts is compared.

`make chaos` plays all scenarios; `holdfast chaos run NAME` one, on your own machine.
"""


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of one scenario: ``wrong`` is empty where the job survived, ``skipped`` says why it was not played.

    ``causes`` are those of its verdicts, ``redone`` the steps that were done again, ``took_s`` is from the start of the
    job to its end, and ``peace_s`` the same for the job in peace. ``at`` is when it ended, in Unix seconds.
    """

    name: str
    fault: str
    moment: str
    mode: str
    ranks: int
    hosts: int = 1
    causes: tuple[str, ...] = ()
    redone: int = 0
    took_s: float = 0.0
    peace_s: float = 0.0
    wrong: tuple[str, ...] = ()
    skipped: str = ""
    at: float = 0.0

    @property
    def survived(self) -> bool:
        """Whether everything is as it has to be."""
        return not self.wrong and not self.skipped


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """All outcomes of one machine; ``at`` in Unix seconds, of the newest."""

    schema: str = SCHEMA
    at: float = 0.0
    machine: Mapping[str, str] = {}
    outcomes: tuple[Outcome, ...] = ()

    def having(self, found: Iterable[Outcome], at: float, machine: Mapping[str, str]) -> Results:
        """These results with newer ones, which take the place of those of the same name."""
        both = {each.name: each for each in (*self.outcomes, *found)}
        return replace(self, at=at, machine=machine, outcomes=tuple(both.values()))

    def of(self, known: Iterable[Outcome]) -> Results:
        """The results of all that is known: what was never played is marked so, and what is not known any more goes."""
        found = {each.name: each for each in self.outcomes}
        return replace(self, outcomes=tuple(found.get(each.name, each) for each in known))


def read(path: Path) -> Results:
    """The results in a file; none where it is not there.

    Raises:
        BadValue: it is none that holdfast could have written.
        MissingFile: it cannot be read.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Results)
    except FileNotFoundError:
        return Results()
    except OSError as error:
        raise MissingFile(path, why=(error.strerror or str(error)).lower()) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadValue(f"the results {path}", why=str(error), next_step="name another file") from error
    if found.schema != SCHEMA:
        raise BadValue(f"the results {path}", why=f"its form is {found.schema[:40]!r}, not {SCHEMA!r}")
    return found


def write(path: Path, results: Results) -> None:
    """Write them, whole or not at all. Raises MissingFile."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def add(path: Path, outcome: Outcome, machine: Mapping[str, str]) -> None:
    """Add one outcome to a file of results, which other processes may add to at the same time.

    Raises:
        BadValue, MissingFile: as :func:`read` does; or the file cannot be written.
    """
    with _alone(path.parent):
        write(path, read(path).having([outcome], outcome.at, machine))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process is in here for the same folder."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise MissingFile(folder, why=(error.strerror or str(error)).lower()) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def page(results: Results, note: str) -> str:
    """The page, in Markdown."""
    day = time.strftime("%Y-%m-%d", time.gmtime(results.at))
    machine = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    good = sum(each.survived for each in results.outcomes)
    bad = sum(bool(each.wrong) for each in results.outcomes)
    unplayed = f", {left} were not played" if (left := len(results.outcomes) - good - bad) else ""
    summary = f"Last run: {day}, {machine}. Of {len(results.outcomes)} scenarios {good} were survived{unplayed}"
    summary += f", and {bad} were not survived.\n" if bad else ".\n"
    modes = dict.fromkeys((each.mode, each.hosts) for each in results.outcomes)
    tables = [
        _mode(mode, hosts, [each for each in results.outcomes if (each.mode, each.hosts) == (mode, hosts)])
        for mode, hosts in modes
    ]
    return "\n".join([_HEAD.replace("{note}", note.rstrip()), summary, *tables, *_failures(results)]).rstrip() + "\n"


def _mode(mode: str, hosts: int, outcomes: Sequence[Outcome]) -> str:
    where = "one host" if hosts == 1 else f"{hosts} hosts"
    moments = list(dict.fromkeys(each.moment for each in outcomes))
    faults = list(dict.fromkeys(each.fault for each in outcomes))
    at = {(each.fault, each.moment): each for each in outcomes}
    several = [moment for moment in moments if sum((fault, moment) in at for fault in faults) > 1]
    lines = [
        f"## {mode}, {outcomes[0].ranks} ranks on {where}\n",
        "Seconds from the start of the job to its end, and what the verdicts say.\n",
        f"| fault | {' | '.join(several)} | other moments | named |",
        f"|{' --- |' * (len(several) + 3)}",
    ]
    for fault in faults:
        cells = [_cell(at.get((fault, moment))) for moment in several]
        others = "; ".join(
            f"{moment}: {_cell(at[fault, moment])}"
            for moment in moments
            if moment not in several and (fault, moment) in at
        )
        named = ", ".join(sorted({cause for each in outcomes if each.fault == fault for cause in each.causes}))
        lines.append(f"| {fault} | {' | '.join(cells)} | {others} | {named} |")
    return "\n".join(lines) + "\n"


def _cell(outcome: Outcome | None) -> str:
    if outcome is None or outcome.skipped:
        return "" if outcome is None else "not played"
    return f"{outcome.took_s:.0f}" if outcome.survived else f"**no** ({outcome.took_s:.0f})"


def _failures(results: Results) -> Iterator[str]:
    bad = [each for each in results.outcomes if not each.survived]
    if bad:
        yield "## Not survived, or not played\n"
        whys: dict[str, list[str]] = {}
        for each in bad:
            whys.setdefault(each.skipped or "; ".join(each.wrong), []).append(f"`{each.name}`")
        yield "\n".join(f"- {', '.join(names)}: {why}" for why, names in whys.items()) + "\n"

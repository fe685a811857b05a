"""Write the file of a new cause: ``python -m holdfast.causes new NAME --family FAMILY``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from holdfast.causes import all_causes
from holdfast.core.errors import InvalidValue, MissingFile

#: Every text of the template that is to be replaced begins with this word; a test refuses it.
PLACEHOLDER = "PLACEHOLDER"

#: Folder of a family -> the letters of its codes.
FOLDERS: Mapping[str, str] = {
    "environment": "ENV",
    "network": "NET",
    "gpu": "GPU",
    "memory": "MEM",
    "sync": "SYNC",
    "process": "PROC",
    "data": "DATA",
    "checkpoint": "CKPT",
    "configuration": "CONF",
    "performance": "PERF",
    "numerics": "NUM",
}

#: A name says what is wrong; these begin with what to do about it, or name what is missing.
NAMES_OF_FIXES = re.compile(
    r"^(use|add|avoid|set|call|remove|fix|enable|disable|prefer|increase|decrease|raise|install"
    r"|check|ensure|should)-"
    r"|^(no|missing|without|unnecessary)-(?!failure$)"
    r"|-(should|must|needed|required|recommended)(-|$)"
)
NAME_FORM = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

_TEMPLATE = '''"""{code} {name}."""

from __future__ import annotations

from holdfast.causes.remedies import disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

{constant} = Cause(
    code="{code}",
    name="{name}",
    summary="PLACEHOLDER: what is wrong, in one sentence.",
    what_happens="PLACEHOLDER: how it comes about, and what it does to the rank and to the others.",
    shows_before="PLACEHOLDER: what shows it before the job fails, or: Nothing.",
    shows_during="PLACEHOLDER: what shows it while the job hangs or fails, or: Nothing.",
    shows_after="PLACEHOLDER: what the logs contain afterwards, or: Nothing.",
    known_misses="PLACEHOLDER: when it is not found, or is mistaken for another cause.",
    evidence_sources=(EvidenceSource.LOG,),
    signals=(
        LogSignal(
            name="{name}",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="PLACEHOLDER: what such a line reports, without a full stop",
            patterns=(r"PLACEHOLDER: a regular expression without look-around",),
            examples=("PLACEHOLDER: {example}",),
            # counter_examples=("a similar line of a healthy job",),
        ),
    ),
    remedies=(
        disruptive(
            "PLACEHOLDER: what to do, as a sentence.",
            "PLACEHOLDER: a shell command, or delete this line",
        ),
    ),
    sources=("PLACEHOLDER: {source}",),
    # treatment=Treatment.BAD_HOST,  # which recovery may help: see core/treatments.py
)
'''
_STEPS = """Wrote {path} ({code}). Next:
{before}  {first}. Replace every PLACEHOLDER in the file. Delete `signals` if no log line shows it.
  {second}. Generate its pages:  python docs/generate.py
  {third}. Test it:              python -m pytest tests/unit/causes -q
  {fourth}. Read it:              holdfast explain {code}
CONTRIBUTING.md ("How to add a cause") explains the fields.
"""
_RECORD = """  1. Record the fault where it occurs: the rank's log, `dmesg`, `nvidia-smi -q`, or the
     output of the failing tool. No gloo program is needed.
  2. Put the recorded lines into `examples`, unchanged except for host names and addresses, and the
     origin of the record (issue, driver and GPU) into `sources`.
     A fault that shows in the driver's answers and not in a log: add the recorded answer to
     tests/unit/host/gpus/recorded.py and a rule with its test to src/holdfast/host/check_rules/.
"""


def write_new_cause(name: str, folder: str, *, gpu_only: bool = False) -> str:
    """Write the file of the cause ``name`` into the family's ``folder``; return the next steps.

    Raises:
        InvalidValue: the name is malformed, names a fix, or is taken.
        MissingFile: holdfast does not run from a source checkout.
    """
    _check_name(name)
    package = Path(__file__).parent
    root = package.parents[2]
    if not (root / "pyproject.toml").is_file():
        raise MissingFile(
            "pyproject.toml",
            why=f"{package} is not in a source checkout",
            next_step="run this from a clone of the repository, installed with: make setup",
        )
    letters = FOLDERS[folder]
    numbers = [
        int(cause.code.removeprefix(letters)) for cause in all_causes() if cause.family == letters
    ]
    code = f"{letters}{max(numbers) + 1:03}"
    stem = name.replace("-", "_")
    path = package / folder / f"{stem}.py"
    text = _TEMPLATE.format(
        code=code,
        name=name,
        constant=stem.upper(),
        example="a line that was recorded from real hardware"
        if gpu_only
        else "a log line as it is printed",
        source="issue, driver version and GPU that the example was recorded from"
        if gpu_only
        else "an issue as owner/repository#number, or a manual",
    )
    path.write_text(text)
    first = 3 if gpu_only else 1
    return _STEPS.format(
        path=path.relative_to(root),
        code=code,
        before=_RECORD if gpu_only else "",
        first=first,
        second=first + 1,
        third=first + 2,
        fourth=first + 3,
    )


def _check_name(name: str) -> None:
    """Raise InvalidValue unless ``name`` can be that of a new cause."""
    if not NAME_FORM.fullmatch(name):
        raise InvalidValue("NAME", why=f"{name!r} is not written like-this")
    if NAMES_OF_FIXES.search(name):
        raise InvalidValue(
            "NAME",
            why=f"{name!r} names a fix",
            next_step="name the fault: rank-missing-collective, not add-a-barrier",
        )
    if name in {cause.name for cause in all_causes()}:
        raise InvalidValue("NAME", why=f"the catalogue has a cause named {name!r}")

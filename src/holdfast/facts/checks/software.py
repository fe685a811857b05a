"""Versions of Python and of every package as one fingerprint, and one of the code: equal on hosts that are alike."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

import holdfast
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.source_tree import Code, code
from holdfast.facts.versions import installed
from holdfast.findings import Fact

#: Told by name in one line, where they are installed.
_TOLD = ("torch", "numpy", "triton", "nvidia_nccl_cu12", "nvidia_nccl_cu13", "deepspeed", "accelerate", "transformers")


class Twice(msgspec.Struct, frozen=True):
    """A package with two versions on the path: the one that is imported first."""

    name: str
    versions: tuple[str, ...]
    places: tuple[str, ...]


class Software(Seen, frozen=True, kw_only=True):
    """``fingerprint`` is of Python's version and all packages; ``packages`` are the versions that are imported."""

    python: str
    executable: str
    holdfast: str
    packages: dict[str, str]
    fingerprint: str
    twice: tuple[Twice, ...] = ()
    code: Code | None = None

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        text = f"{self.fingerprint} of Python {self.python} and {len(self.packages)} packages"
        told = [fact("software", text, "sys.path"), fact("Python", f"{self.python}, {self.executable}", "sys")]
        told += [fact(name, self.packages[name], "sys.path") for name in _TOLD if name in self.packages]
        told.append(fact("holdfast", self.holdfast, "holdfast"))
        for each in self.twice:
            told.append(fact(f"{each.name} more than once", ", ".join(each.versions), ", ".join(each.places)))
        if self.code is not None:
            prints = (
                f"{self.code.fingerprint} of {self.code.files} files" if self.code.fingerprint else self.code.why_not
            )
            commit = f", commit {self.code.commit[:12]}" if self.code.commit else ""
            told.append(fact("code", prints + commit, self.code.folder))
        return tuple(told)


def look(place: Place) -> Software:
    """List the folders on the path (in a recorded tree that of its variable PYTHONPATH) and read the code's files."""
    here = place.root == "/"
    path = (
        sys.path if here else [str(place.path(part)) for part in place.environ.get("PYTHONPATH", "").split(":") if part]
    )
    found = installed(Path(folder or ".") for folder in dict.fromkeys(os.path.realpath(part or ".") for part in path))
    packages = {name: versions[0][0] for name, versions in sorted(found.items())}
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    return Software(
        python=python,
        executable=sys.executable,
        holdfast=holdfast.__version__,
        packages=packages,
        fingerprint=fingerprint(python, packages),
        twice=tuple(
            Twice(name, tuple(version for version, _ in versions), tuple(origin for _, origin in versions))
            for name, versions in sorted(found.items())
            if len({version for version, _ in versions}) > 1
        ),
        code=code(Path.cwd()) if here else None,
    )


def fingerprint(python: str, packages: Mapping[str, str]) -> str:
    """16 digits that are the same where Python and all versions are."""
    lines = [python, *(f"{name}=={version}" for name, version in sorted(packages.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

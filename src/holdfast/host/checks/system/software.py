"""Fingerprints of Python with all packages and of the user's code, which hosts can compare."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

import holdfast
from holdfast.core.findings import Fact
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.source_fingerprint import SourceFingerprint, fingerprint_source
from holdfast.host.versions import installed

#: Packages that have a fact of their own, where they are installed.
_SHOWN_PACKAGES = tuple(
    """
    torch numpy triton nvidia_nccl_cu12 nvidia_nccl_cu13 deepspeed accelerate transformers
    """.split()
)


class DuplicatePackage(msgspec.Struct, frozen=True):
    """A package with several versions on sys.path; the first one is imported."""

    name: str
    versions: tuple[str, ...]
    folders: tuple[str, ...]


class SoftwareResult(CheckResult, frozen=True, kw_only=True):
    """``fingerprint`` covers Python's version and all packages.

    ``packages`` are the imported versions.
    """

    python: str
    executable: str
    holdfast: str
    packages: dict[str, str]
    fingerprint: str
    duplicates: tuple[DuplicatePackage, ...] = ()
    code: SourceFingerprint | None = None

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        text = (
            f"fingerprint {self.fingerprint}, Python {self.python}, {len(self.packages)} packages"
        )
        facts = [
            check_fact("software", text, "sys.path"),
            check_fact("Python", f"{self.python}, {self.executable}", "sys"),
        ]
        facts += [
            check_fact(name, self.packages[name], "sys.path")
            for name in _SHOWN_PACKAGES
            if name in self.packages
        ]
        facts.append(check_fact("holdfast", self.holdfast, "holdfast"))
        facts += [
            check_fact(
                f"{package.name} installed more than once",
                ", ".join(package.versions),
                ", ".join(package.folders),
            )
            for package in self.duplicates
        ]
        if self.code is not None:
            text = (
                f"fingerprint {self.code.fingerprint} of {self.code.files} files"
                if self.code.fingerprint
                else self.code.why_not
            )
            commit = f", commit {self.code.commit[:12]}" if self.code.commit else ""
            facts.append(check_fact("code", text + commit, self.code.folder))
        return tuple(facts)


def inspect(context: CheckContext) -> SoftwareResult:
    """Read the packages on sys.path (a recorded tree's PYTHONPATH) and hash the code."""
    is_live = context.root == "/"
    path = (
        sys.path
        if is_live
        else [
            str(context.path(part))
            for part in context.environ.get("PYTHONPATH", "").split(":")
            if part
        ]
    )
    packages = installed(
        Path(folder or ".")
        for folder in dict.fromkeys(os.path.realpath(part or ".") for part in path)
    )
    imported = {name: versions[0][0] for name, versions in sorted(packages.items())}
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    return SoftwareResult(
        python=python,
        executable=sys.executable,
        holdfast=holdfast.__version__,
        packages=imported,
        fingerprint=environment_fingerprint(python, imported),
        duplicates=tuple(
            DuplicatePackage(
                name,
                tuple(version for version, _ in versions),
                tuple(origin for _, origin in versions),
            )
            for name, versions in sorted(packages.items())
            if len({version for version, _ in versions}) > 1
        ),
        code=fingerprint_source(Path.cwd()) if is_live else None,
    )


def environment_fingerprint(python: str, packages: Mapping[str, str]) -> str:
    """Return 16 hex digits that are equal if Python and all package versions are equal."""
    lines = [python, *(f"{name}=={version}" for name, version in sorted(packages.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]

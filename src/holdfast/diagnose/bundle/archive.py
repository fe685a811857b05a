"""Write the debug bundle: one archive with evidence, system information and a manifest, redacted.

    NAME/README.md, manifest.json      how to read it; members, omitted files, number of redactions
    NAME/system/...                    versions, host, limits, environment, devices, kernel messages
    NAME/evidence/...                  logs, dumps, trace files and verdicts, in their folders

Every member is first written, redacted, into a folder beside the archive, and scanned again
(``redacted_copy.py``); the archive is created from these and renamed into place. A file that cannot
be scanned for secrets (an unrecognized binary file) is omitted.
"""

from __future__ import annotations

import getpass
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

import holdfast
from holdfast.core.errors import DumpUnreadable, MissingFile, TraceUnreadable
from holdfast.core.findings import SCHEMA, Unknown
from holdfast.core.redaction.redact import Redactor
from holdfast.core.text import os_error_reason
from holdfast.diagnose.bundle.evidence_files import (
    BundleSource,
    Excerpt,
    OmittedFile,
    earliest_evidence_time,
    find_sources,
    open_source,
    recorded_hosts,
)
from holdfast.diagnose.bundle.redact_records import redact_data
from holdfast.diagnose.bundle.redacted_copy import redact_source, write_verified
from holdfast.diagnose.evidence import EvidenceKind
from holdfast.host import machine_report
from holdfast.host.environment import environment_facts
from holdfast.host.host_summary import host_facts
from holdfast.host.versions import installed_versions

#: Maximum size of all members before compression; later files are omitted.
MAX_BYTES = 2 << 30
#: Login names that are not names of persons.
_COMMON_USERS = ("root", "user", "nobody")
_README = """# Debug bundle

Created by `holdfast report` (holdfast {version}) on {when}.

- `holdfast diagnose {name}.tar.gz` reads the archive and finds the root cause.
- `evidence/` contains the files that were passed: logs, dumps, trace files, verdicts.
- `system/` describes the machine on which the bundle was created, at that time: `facts.json`, the
  output of `nvidia-smi` and other programs in `programs.json`, and in `kernel.log` the kernel
  messages since the evidence began.
- `manifest.json` lists all members with size and SHA-256, omitted files with the reason, and the
  number of redactions.

Secrets are replaced by `<redacted:KIND>`, in trace files by asterisks. Names of persons in paths
are replaced by `user1`, `user2`, … throughout the archive, padded with `_` to the original length.
Review the archive before you share it: a secret that looks like an ordinary word cannot be
detected.
"""


class BundleMember(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of the archive: size, original size, and number of redactions by kind."""

    name: str
    kind: str
    size: int
    sha256: str
    original_size: int | None = None
    note: str = ""
    redacted: dict[str, int] = {}


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """The archive, its size in bytes, its members, omitted files, and redactions by kind."""

    archive: str
    size: int
    members: tuple[BundleMember, ...]
    left_out: tuple[OmittedFile, ...]
    redacted: dict[str, int]


def create_bundle(
    paths: Iterable[Path],
    output: Path,
    environ: Mapping[str, str],
    *,
    redact_hosts: bool = False,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Write the archive ``output`` from ``paths`` (files and folders) and this machine.

    ``on_progress`` is called with the name of each file.

    Raises:
        MissingFile: a path does not exist, or the archive cannot be written.
    """
    sources = list(paths)
    for path in sources:
        if not path.exists():
            raise MissingFile(path)
    hosts = [os.uname().nodename] if redact_hosts else None
    new_redactor = partial(Redactor, users=_user_names(), hosts=hosts)
    parent = output.absolute().parent
    try:
        with tempfile.TemporaryDirectory(prefix=".holdfast-", dir=parent) as folder:
            writer = _BundleWriter(Path(folder), new_redactor, on_progress)
            excluded = {output.absolute(), Path(folder).absolute()}
            writer.add_sources(find_sources(sources, excluded))
            writer.add_machine(environ)
            writer.add_kernel_messages(earliest_evidence_time(sources), recorded_hosts(sources))
            return writer.write(output)
    except OSError as error:
        why = os_error_reason(error)
        raise MissingFile(
            output,
            why=why if parent.is_dir() else "its folder does not exist",
            next_step="choose a file in a writable folder",
        ) from error


def _user_names() -> list[str]:
    """Return the login name of this process, unless it is a common one."""
    with suppress(OSError, KeyError, ImportError):
        name = getpass.getuser()
        return [] if name in _COMMON_USERS else [name]
    return []


class _BundleWriter:
    """Writes redacted members into a folder, and the archive from them."""

    def __init__(
        self, folder: Path, new_redactor: Callable[[], Redactor], on_progress: Callable[[str], None]
    ) -> None:
        self._folder, self._new_redactor, self._on_progress = folder, new_redactor, on_progress
        self._redactor = new_redactor()
        self._members: list[BundleMember] = []
        self._omitted: list[OmittedFile] = []
        self._names: set[str] = set()
        self._remaining = MAX_BYTES

    def add_sources(self, sources: Iterable[BundleSource | OmittedFile]) -> None:
        """Add all files in order; members of an archive can be read only as they are yielded."""
        for source in sources:
            if isinstance(source, OmittedFile):
                self._omit(source.name, source.why)
            else:
                self._add_source(source)

    def _add_source(self, source: BundleSource) -> None:
        self._on_progress(source.name)
        try:
            with open_source(source) as excerpt:
                if excerpt.size > self._remaining:
                    why = f"the bundle would contain more than {MAX_BYTES >> 30} GiB"
                    self._omit(source.name, why)
                    return
                blocks = redact_source(source, excerpt, self._redactor)
                self._add(f"evidence/{source.name}", source, blocks, excerpt)
        except (TraceUnreadable, DumpUnreadable) as error:
            self._omit(source.name, f"{error.why or error}; it cannot be scanned for secrets")
        except OSError as error:
            self._omit(source.name, os_error_reason(error))

    def add_machine(self, environ: Mapping[str, str]) -> None:
        """Add the facts about this machine.

        Facts and program output are JSON, which ``diagnose`` does not read as a job's log.
        """
        self._on_progress("this machine")
        facts = (
            *installed_versions(),
            *host_facts(),
            *machine_report.limits(),
            *machine_report.interfaces(),
            *machine_report.infiniband(),
            *machine_report.nodes(),
            *environment_facts(environ),
        )
        self._add_json("facts.json", {"facts": facts})
        outputs = {}
        for name, output in machine_report.command_outputs():
            if isinstance(output, Unknown):
                self._omit(f"system/programs.json: {name}", output.why)
            else:
                outputs[name] = output.decode(errors="replace").splitlines()
        self._add_json("programs.json", outputs)

    def add_kernel_messages(self, since: float | None, hosts: Collection[str]) -> None:
        """Add this machine's kernel messages ``since`` the evidence began, if the run was on it.

        ``hosts`` are those of the run, empty if unknown: what the kernel of another machine killed
        did not end the job.
        """
        if hosts and os.uname().nodename not in hosts:
            named = ", ".join(sorted(hosts)[:3])
            self._omit("system/kernel.log", f"the run was on {named}, not on this machine")
            return
        messages = machine_report.kernel_messages(since)
        if isinstance(messages, Unknown):
            self._omit("system/kernel.log", messages.why)
        else:
            blocks = self._redactor.redact_stream(io.BytesIO(messages))
            source = BundleSource(Path(), "kernel.log", EvidenceKind.LOG, "utf-8")
            self._add("system/kernel.log", source, blocks)

    def _add_json(self, name: str, content: Mapping[str, Any]) -> None:
        document = msgspec.to_builtins({"schema": SCHEMA, **content})
        encoded = msgspec.json.encode(redact_data(document, self._redactor))
        source = BundleSource(Path(), name, EvidenceKind.REPORT, "utf-8", is_document=True)
        self._add(f"system/{name}", source, iter([msgspec.json.format(encoded)]))

    def _add(
        self,
        name: str,
        source: BundleSource,
        blocks: Iterator[bytes],
        excerpt: Excerpt | None = None,
    ) -> None:
        """Write a member, and add it if the verification succeeds."""
        before = Counter(self._redactor.counts)
        member_name = self._unused_name(self._redactor.redact_text(name))
        path = self._folder / member_name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._redactor.counts += write_verified(blocks, path, source, self._new_redactor)
        if not path.exists():
            self._omit(source.name, "it still contained secrets after several redaction rounds")
            return
        size = path.stat().st_size
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._remaining -= size
        omitted = excerpt.omitted if excerpt is not None else 0
        self._members.append(
            BundleMember(
                name=member_name,
                kind=str(source.kind),
                size=size,
                sha256=digest,
                note=f"{omitted} bytes in the middle omitted" if omitted else "",
                original_size=excerpt.size if excerpt else None,
                redacted=dict(self._redactor.counts - before),
            )
        )

    def _unused_name(self, name: str) -> str:
        """Return the name, with a number if another member has it already."""
        path, unused, number = Path(name), name, 1
        while unused in self._names:
            number += 1
            unused = str(path.with_name(f"{path.stem}-{number}{path.suffix}"))
        self._names.add(unused)
        return unused

    def _omit(self, name: str, why: str) -> None:
        redact = self._redactor.redact_text
        self._omitted.append(OmittedFile(redact(name), redact(why)))

    def write(self, output: Path) -> Bundle:
        """Write the archive atomically."""
        self._on_progress(f"writing {output}")
        name = output.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
        redacted = dict(sorted(self._redactor.counts.items()))
        now = time.time()
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
        readme = _README.format(version=holdfast.__version__, when=when, name=name)
        manifest = {
            "schema": SCHEMA,
            "kind": str(EvidenceKind.REPORT),
            "made": now,
            "holdfast": holdfast.__version__,
            "members": self._members,
            "left_out": self._omitted,
            "redacted": redacted,
        }
        documents = {
            "README.md": readme.encode(),
            "manifest.json": msgspec.json.format(msgspec.json.encode(manifest)),
        }
        unfinished = self._folder / ".archive"
        with (
            unfinished.open("xb") as raw,
            gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for document_name, content in documents.items():
                member = io.BytesIO(content)
                _add_to_tar(tar, f"{name}/{document_name}", member, len(content), now)
            for each in self._members:
                with (self._folder / each.name).open("rb") as file:
                    _add_to_tar(tar, f"{name}/{each.name}", file, each.size, now)
        unfinished.chmod(0o600)
        shutil.move(unfinished, output)
        return Bundle(
            archive=str(output),
            size=output.stat().st_size,
            members=tuple(self._members),
            left_out=tuple(self._omitted),
            redacted=redacted,
        )


def _add_to_tar(
    tar: tarfile.TarFile, name: str, content: BinaryIO, size: int, modified: float
) -> None:
    """Add a member without the name of a user or group."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, int(modified), 0o644
    tar.addfile(entry, content)

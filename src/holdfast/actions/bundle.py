"""Puts everything that somebody else needs into one archive, without secrets: evidence, machine, manifest.

    NAME/README.md, manifest.json      what it is; what is in it, what was left out and why, what was redacted
    NAME/system/...                    versions, host, limits, environment, devices, kernel messages of this machine
    NAME/evidence/...                  logs, dumps, boxes and verdicts, in the folders in which they lay

Every member is first written, clean, into a folder beside the archive, read again and searched once
more (``clean_copy.py``); the archive is made of those and renamed into place. A file in which secrets could not be
looked for (a binary one of unknown form) is left out.
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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

import holdfast
from holdfast.actions.clean_copy import cleaned, write
from holdfast.actions.evidence_files import Excerpt, Found, LeftOut, began, find, opened
from holdfast.actions.redact import Redactor
from holdfast.actions.redact_records import plain
from holdfast.errors import BoxUnreadable, DumpUnreadable, MissingFile
from holdfast.facts import machine
from holdfast.facts.environment import environment_facts
from holdfast.facts.evidence import Kind
from holdfast.facts.host import host_facts
from holdfast.facts.versions import versions
from holdfast.findings import SCHEMA, Unknown

#: The archive holds so much before it is packed; what comes later is left out, and said.
MOST_BYTES = 2 << 30
_README = """# What holdfast collected

Made by `holdfast report` (holdfast {version}) on {when}.

- `holdfast diagnose {name}.tar.gz` reads the archive as it is and says what went wrong.
- `evidence/` holds what the user handed in: logs, flight-recorder dumps, boxes, verdicts.
- `system/` describes the machine on which the report was made, at that time: `facts.json`, what `nvidia-smi` and other
  programs said in `programs.json`, and in `kernel.log` what its kernel has said since the evidence began.
- `manifest.json` lists every member with its size and SHA-256, what was left out and why, and what was redacted how
  often.

Secrets stand as `<redacted:KIND>`, in boxes as asterisks. People are `user1`, `user2`, … in paths, the same one
everywhere; a name is filled up with `_` to the length that it had. Look through it before you hand it on: what looks
like no secret cannot be known to be one.
"""


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of the archive: its size now and before it was cleaned or cut, and what was redacted in it."""

    name: str
    kind: str
    size: int
    sha256: str
    original_size: int | None = None
    note: str = ""
    redacted: dict[str, int] = {}


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """What was made: the archive, its size in bytes, what is in it, what was left out, and redactions by kind."""

    archive: str
    size: int
    members: tuple[Member, ...]
    left_out: tuple[LeftOut, ...]
    redacted: dict[str, int]


def bundle(
    paths: Iterable[Path],
    output: Path,
    environ: Mapping[str, str],
    *,
    redact_hosts: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Bundle:
    """Write the archive ``output`` about ``paths`` (files and folders) and this machine; ``say`` hears what is read.

    Raises:
        MissingFile: a path is not there, or the archive cannot be written.
    """
    given = list(paths)
    for path in given:
        if not path.exists():
            raise MissingFile(path)
    fresh = partial(Redactor, users=_users(), hosts=[os.uname().nodename] if redact_hosts else None)
    try:
        with tempfile.TemporaryDirectory(prefix=".holdfast-", dir=output.absolute().parent) as folder:
            packer = _Packer(Path(folder), fresh, say)
            packer.add_all(find(given, besides={output.absolute(), Path(folder).absolute()}))
            packer.add_machine(environ, began(given))
            return packer.write(output)
    except OSError as error:
        why = "its folder does not exist" if not output.absolute().parent.is_dir() else (error.strerror or str(error))
        raise MissingFile(
            output, why=why.lower(), next_step="name a file in a folder that can be written to"
        ) from error


def _users() -> list[str]:
    """The login name of this process, unless it is that of everybody."""
    with suppress(OSError, KeyError, ImportError):
        name = getpass.getuser()
        return [] if name in ("root", "user", "nobody") else [name]
    return []


class _Packer:
    """Writes clean members into a folder, and the archive from them."""

    def __init__(self, folder: Path, fresh: Callable[[], Redactor], say: Callable[[str], None]) -> None:
        self._folder, self._fresh, self._say = folder, fresh, say
        self._redactor = fresh()
        self._members: list[Member] = []
        self._left_out: list[LeftOut] = []
        self._names: set[str] = set()
        self._left = MOST_BYTES

    def add_all(self, found: Iterable[Found | LeftOut]) -> None:
        """All files; the members of an archive as they come by, because going back would be dear."""
        for each in found:
            if isinstance(each, LeftOut):
                self._leave_out(each.name, each.why)
            else:
                self._add_file(each)

    def _add_file(self, found: Found) -> None:
        self._say(found.name)
        try:
            with opened(found) as excerpt:
                if excerpt.size > self._left:
                    self._leave_out(found.name, f"the archive would hold more than {MOST_BYTES >> 30} GiB")
                    return
                self._add(f"evidence/{found.name}", found, cleaned(found, excerpt, self._redactor), excerpt)
        except (BoxUnreadable, DumpUnreadable) as error:
            self._leave_out(found.name, f"{error.why or error}, so secrets cannot be looked for in it")
        except OSError as error:
            self._leave_out(found.name, (error.strerror or str(error)).lower())

    def add_machine(self, environ: Mapping[str, str], since: float | None) -> None:
        """What this machine is, as seen now, and what its kernel has said ``since`` the evidence began.

        Facts and answers go in as JSON, which nobody takes for the log of a job.
        """
        self._say("this machine")
        facts = (*versions(), *host_facts(), *machine.limits(), *machine.interfaces(), *machine.infiniband(),
                 *machine.nodes(), *environment_facts(environ))  # fmt: skip
        self._add_json("facts.json", {"facts": facts})
        answers = {}
        for name, answer in machine.answers():
            if isinstance(answer, Unknown):
                self._leave_out(f"system/programs.json: {name}", answer.why)
            else:
                answers[name] = answer.decode(errors="replace").splitlines()
        self._add_json("programs.json", answers)
        messages = machine.kernel_messages(since)
        if isinstance(messages, Unknown):
            self._leave_out("system/kernel.log", messages.why)
        else:
            blocks = self._redactor.stream(io.BytesIO(messages))
            self._add("system/kernel.log", Found(Path(), "kernel.log", Kind.LOG, "utf-8"), blocks)

    def _add_json(self, name: str, content: Mapping[str, Any]) -> None:
        clean = plain(msgspec.to_builtins({"schema": SCHEMA, **content}), self._redactor)
        made = msgspec.json.format(msgspec.json.encode(clean))
        self._add(f"system/{name}", Found(Path(), name, Kind.REPORT, "utf-8", is_document=True), iter([made]))

    def _add(self, name: str, found: Found, blocks: Iterator[bytes], excerpt: Excerpt | None = None) -> None:
        """A member, which is read once more before it counts."""
        before = Counter(self._redactor.counts)
        clean = self._free_name(self._redactor.text(name))
        path = self._folder / clean
        path.parent.mkdir(parents=True, exist_ok=True)
        self._redactor.counts += write(blocks, path, found, self._fresh)
        if not path.exists():
            self._leave_out(found.name, "secrets were found in it again and again, however often they were taken out")
            return
        size = path.stat().st_size
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._left -= size
        note = f"{excerpt.left_out} bytes in the middle left out" if excerpt is not None and excerpt.left_out else ""
        self._members.append(
            Member(name=clean, kind=str(found.kind), size=size, sha256=digest, note=note,
                   original_size=excerpt.size if excerpt else None, redacted=dict(self._redactor.counts - before))
        )  # fmt: skip

    def _free_name(self, name: str) -> str:
        """The name, with a number where another member has it already."""
        path, free, number = Path(name), name, 1
        while free in self._names:
            number += 1
            free = str(path.with_name(f"{path.stem}-{number}{path.suffix}"))
        self._names.add(free)
        return free

    def _leave_out(self, name: str, why: str) -> None:
        self._left_out.append(LeftOut(self._redactor.text(name), self._redactor.text(why)))

    def write(self, output: Path) -> Bundle:
        """Make the archive, whole or not at all."""
        self._say(f"writing {output}")
        name = output.name.removesuffix(".gz").removesuffix(".tar").removesuffix(".tgz")
        redacted = dict(sorted(self._redactor.counts.items()))
        now = time.time()
        manifest = {
            "schema": SCHEMA, "kind": str(Kind.REPORT), "made": now, "holdfast": holdfast.__version__,
            "members": self._members, "left_out": self._left_out, "redacted": redacted,
        }  # fmt: skip
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
        readme = _README.format(version=holdfast.__version__, when=when, name=name).encode()
        beside = self._folder / ".archive"
        with beside.open("xb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed, _tar(packed) as tar:
            _put(tar, f"{name}/README.md", io.BytesIO(readme), len(readme), now)
            listed = msgspec.json.format(msgspec.json.encode(manifest))
            _put(tar, f"{name}/manifest.json", io.BytesIO(listed), len(listed), now)
            for member in self._members:
                with (self._folder / member.name).open("rb") as file:
                    _put(tar, f"{name}/{member.name}", file, member.size, now)
        beside.chmod(0o600)
        shutil.move(beside, output)
        return Bundle(
            archive=str(output), size=output.stat().st_size, members=tuple(self._members),
            left_out=tuple(self._left_out), redacted=redacted,
        )  # fmt: skip


def _tar(stream: Any) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT)


def _put(tar: tarfile.TarFile, name: str, content: BinaryIO, size: int, when: float) -> None:
    """A member that belongs to nobody: no name of a user or group goes in."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = size, int(when), 0o644
    tar.addfile(entry, content)

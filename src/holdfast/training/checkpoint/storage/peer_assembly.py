"""Assemble a checkpoint whose files are spread over the memories of several hosts.

The ranks of a host share the work: each verifies part of what the host holds and fetches part of
what it lacks. A damaged file is fetched from another host like a missing one.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.core import checkpoint_manifest
from holdfast.core.errors import CheckpointUnreadable, HoldfastError
from holdfast.training.checkpoint.storage import peer_memory
from holdfast.training.checkpoint.storage.backends import FolderBackend
from holdfast.training.checkpoint.storage.peer_memory import ASSEMBLED
from holdfast.training.checkpoint.storage.shard_files import assigned_files
from holdfast.training.checkpoint.store_agreement import StoreAgreement, to_checkpoint_failed


@dataclass(frozen=True)
class HeldShards:
    """One rank's view of a checkpoint in memory; it is rank ``index`` of ``count`` on ``host``."""

    memory: FolderBackend
    step: int
    seal: str
    index: int
    count: int
    host: int

    @property
    def folder(self) -> Path:
        """Return the folder with this host's files, if any."""
        return self.memory.folder(self.step)


class _HeldReport(msgspec.Struct, frozen=True):
    """A rank's report: which of the host's files it verified, and where to fetch them.

    ``whole`` is the full manifest; empty if the host has nothing of this checkpoint.
    """

    host: int
    verified: tuple[str, ...]
    address: str
    full_manifest: bytes
    why: str


class _AssemblyPlan(msgspec.Struct, frozen=True):
    """Rank 0's answer: which hosts serve which file, and the manifest.

    ``why`` explains why assembly is impossible; empty if it is possible.
    """

    secret: str
    full_manifest: bytes = b""
    addresses: dict[str, list[str]] = {}
    missing_files: dict[int, list[str]] = {}
    why: str = ""


def assemble(shards: HeldShards, agreement: StoreAgreement, *, single_host: bool) -> Path:
    """Return this rank's folder with the complete, verified checkpoint; all ranks call it.

    Raises:
        CheckpointUnreadable: it cannot be assembled; on all ranks.
        CheckpointFailed: a rank did not answer in time.
    """
    secret = agreement.agree("secret", b"", lambda _: secrets.token_hex(16).encode()).decode()
    with ExitStack() as stack:
        address = ""
        if shards.index == 0 and not single_host and shards.folder.exists():
            address = stack.enter_context(peer_memory.serve_files(shards.folder, secret))
        answer = agreement.agree(
            "held",
            msgspec.json.encode(_verify_held(shards, address)),
            lambda messages: _plan_assembly(messages, secret),
        )
        plan = msgspec.json.decode(answer, type=_AssemblyPlan)
        if plan.why:
            raise CheckpointUnreadable(shards.folder, why=plan.why)
        if not plan.missing_files:
            return shards.folder
        target = shards.folder
        if shards.host in plan.missing_files:
            target = (
                shards.memory.path
                / ASSEMBLED
                / secret
                / checkpoint_manifest.folder_name(shards.step)
            )
        run_on_all_ranks(lambda: _gather(shards, plan, target), agreement, shards.folder)
        return target


def _verify_held(shards: HeldShards, address: str) -> _HeldReport:
    """Verify this rank's share of the files that its host holds."""
    try:
        partial, full_manifest = (
            checkpoint_manifest.read_manifest(shards.folder),
            peer_memory.read_full_manifest(shards.folder),
        )
    except CheckpointUnreadable as error:
        return _HeldReport(shards.host, (), "", b"", error.why)
    if full_manifest.seal != shards.seal:
        return _HeldReport(
            shards.host, (), "", b"", "its manifest differs from that of the other hosts"
        )
    assigned = assigned_files(partial, shards.index, shards.count)
    damaged = {
        damage.path: damage.why
        for damage in checkpoint_manifest.find_damage(shards.folder, assigned)
    }
    verified = tuple(entry.path for entry in assigned.files if entry.path not in damaged)
    why = next((f"{path}: {why}" for path, why in damaged.items()), "")
    return _HeldReport(
        shards.host,
        verified,
        address,
        checkpoint_manifest.encode_sealed(full_manifest) if shards.index == 0 else b"",
        why,
    )


def _plan_assembly(messages: list[bytes], secret: str) -> bytes:
    """On rank 0: decide which host serves which files to which."""
    answer = [msgspec.json.decode(each, type=_HeldReport) for each in messages]
    full_manifest = next((each.full_manifest for each in answer if each.full_manifest), b"")
    why = next((each.why for each in answer if each.why), "")
    if not full_manifest:
        return msgspec.json.encode(_AssemblyPlan(secret, why=why or "no host has it"))
    paths = {
        entry.path for entry in checkpoint_manifest.parse_manifest(full_manifest, "memory").files
    }
    verified = {
        host: {path for each in answer if each.host == host for path in each.verified}
        for host in {report.host for report in answer}
    }
    missing = paths - set().union(*verified.values())
    if missing:
        return msgspec.json.encode(_AssemblyPlan(secret, why=why or f"no host has {min(missing)}"))
    address_of = {each.host: each.address for each in answer if each.address}
    missing_files = {
        host: sorted(paths - shards) for host, shards in verified.items() if paths - shards
    }
    needed = {path for each in missing_files.values() for path in each}
    addresses = {
        path: [
            address_of[host]
            for host, shards in verified.items()
            if path in shards and host in address_of
        ]
        for path in needed
    }
    return msgspec.json.encode(_AssemblyPlan(secret, full_manifest, addresses, missing_files))


def _gather(shards: HeldShards, plan: _AssemblyPlan, target: Path) -> None:
    """Collect this rank's share of the files: hard links to local ones, downloads of others."""
    if target == shards.folder:
        return  # complete
    missing_files, manifest = (
        set(plan.missing_files[shards.host]),
        checkpoint_manifest.parse_manifest(plan.full_manifest, target),
    )
    for entry in assigned_files(manifest, shards.index, shards.count).files:
        (target / entry.path).parent.mkdir(parents=True, exist_ok=True)
        if entry.path in missing_files:
            peer_memory.fetch_file(
                plan.addresses[entry.path], plan.secret, entry, target / entry.path
            )
        else:
            os.link(shards.folder / entry.path, target / entry.path)
    if shards.index == 0:
        target.mkdir(parents=True, exist_ok=True)
        (target / checkpoint_manifest.FILE).write_bytes(plan.full_manifest)


def remove_assembled(memory: FolderBackend) -> None:
    """Delete assembled checkpoints after loading."""
    shutil.rmtree(memory.path / ASSEMBLED, ignore_errors=True)


def run_on_all_ranks(act: Callable[[], None], agreement: StoreAgreement, what: Path) -> None:
    """Run ``act`` on every rank. Raises CheckpointUnreadable on all if it fails on one."""
    why = ""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - reported to all ranks
        why = describe_error(error)
    answer = agreement.agree(
        "taken", why.encode(), lambda messages: next((each for each in messages if each), b"")
    )
    if answer:
        raise CheckpointUnreadable(what, why=answer.decode(errors="replace"))


def describe_error(error: Exception) -> str:
    """Return the reason of a failure in one sentence."""
    return (
        error.why
        if isinstance(error, HoldfastError) and error.why
        else to_checkpoint_failed("", error).why
    )

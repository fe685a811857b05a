"""Checkpoints in host memory: each host holds the files of its own ranks and of its neighbor's.

Of N hosts (three or more), each holds 2/N of the files; losing one host loses nothing, because the
next host holds its files too. A folder here is a checkpoint whose manifest lists the files that the
host holds; the full manifest is stored beside it. To load, the first rank of each host serves the
files over TCP during the search, to clients that present the secret that rank 0 created for it.
"""

from __future__ import annotations

import hmac
import os
import re
import shutil
import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import xxhash

from holdfast.core import checkpoint_manifest, settings
from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry
from holdfast.core.errors import CheckpointUnreadable, StorageUnusable
from holdfast.core.text import os_error_reason
from holdfast.training.checkpoint.storage.backends import FolderBackend, storage_errors

#: The full manifest.
FULL_MANIFEST = "whole.json"
#: Subfolder in memory where a host assembles the checkpoint it loads.
ASSEMBLED = ".gathered"
_RANK = re.compile(r"(?:__|rank-)(\d+)")
_SOCKET_TIMEOUT_S = 30.0
_MAX_REQUEST_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20
_SIZE_BYTES = 8


class PeerMemory(FolderBackend):
    """The files of each checkpoint that host ``node`` of ``nodes`` holds in memory."""

    def __init__(self, path: Path, node: int = 0, nodes: int = 1) -> None:
        super().__init__(path, name="memory", durable=False)
        self._node, self._nodes = node, nodes

    def put(self, source: Path, manifest: Manifest) -> None:
        """Copy the files that this host holds. See :class:`StorageBackend`."""
        own_files = tuple(
            entry
            for entry in manifest.files
            if self._node in shard_holders(entry, manifest.ranks, self._nodes)
        )
        partial = checkpoint_manifest.parse_manifest(
            checkpoint_manifest.encode_sealed(msgspec.structs.replace(manifest, files=own_files)),
            self.name,
        )
        with storage_errors(self.name):
            if self._has(partial):
                return
            self._check_space(partial)
            staging_folder = self.create_staging_folder("copy", manifest.step)
            try:
                for entry in partial.files:
                    self._copy(
                        source / entry.path, staging_folder / entry.path, entry, manifest.step
                    )
                (staging_folder / FULL_MANIFEST).write_bytes(
                    checkpoint_manifest.encode_sealed(manifest)
                )
                self.commit(staging_folder, partial)
            finally:
                shutil.rmtree(staging_folder, ignore_errors=True)


def shard_holders(entry: ManifestEntry, ranks: int, nodes: int) -> tuple[int, int]:
    """Return the hosts that hold a checkpoint file: its writer's host and the next."""
    match = _RANK.search(entry.path)
    if match:
        home = min(int(match[1]), ranks - 1) * nodes // ranks
    else:  # the index and engine files
        home = xxhash.xxh3_64_intdigest(entry.path.encode()) % nodes
    return home, (home + 1) % nodes


def read_full_manifest(folder: Path) -> Manifest:
    """Return the full manifest of a checkpoint in memory. Raises CheckpointUnreadable."""
    try:
        return checkpoint_manifest.parse_manifest((folder / FULL_MANIFEST).read_bytes(), folder)
    except FileNotFoundError:
        return checkpoint_manifest.read_manifest(folder)
    except OSError as error:
        raise CheckpointUnreadable(
            folder, why=f"{FULL_MANIFEST}: {os_error_reason(error)}"
        ) from error


class _ShardRequest(msgspec.Struct, frozen=True):
    secret: str
    path: str


@contextmanager
def serve_files(folder: Path, secret: str) -> Iterator[str]:
    """Serve the files in ``folder`` while the block runs; yields the address, "host port"."""
    dual_stack = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual_stack else socket.AF_INET
    with socket.create_server(
        ("", 0), family=family, backlog=64, dualstack_ipv6=dual_stack
    ) as server:
        threading.Thread(
            target=_serve, args=(server, folder, secret), name="holdfast shard server", daemon=True
        ).start()
        try:
            yield f"{_own_address()} {server.getsockname()[1]}"
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # accept() returns


def _serve(server: socket.socket, folder: Path, secret: str) -> None:
    with suppress(OSError):  # closed
        while True:
            connection, _ = server.accept()
            threading.Thread(
                target=_send_file, args=(connection, folder, secret), daemon=True
            ).start()


def _send_file(connection: socket.socket, folder: Path, secret: str) -> None:
    with connection, suppress(OSError, msgspec.MsgspecError, CheckpointUnreadable):
        connection.settimeout(_SOCKET_TIMEOUT_S)
        with connection.makefile("rb") as stream:
            request = msgspec.json.decode(stream.readline(_MAX_REQUEST_BYTES), type=_ShardRequest)
        files = {entry.path for entry in checkpoint_manifest.read_manifest(folder).files}
        if hmac.compare_digest(request.secret.encode(), secret.encode()) and request.path in files:
            with (folder / request.path).open("rb") as file:
                connection.sendall(os.fstat(file.fileno()).st_size.to_bytes(_SIZE_BYTES, "big"))
                connection.sendfile(file)


def fetch_file(addresses: Collection[str], secret: str, entry: ManifestEntry, target: Path) -> None:
    """Download and verify a file from a host that holds it. Raises StorageUnusable: none has it."""
    why = "no host has it"
    target.parent.mkdir(parents=True, exist_ok=True)
    for address in addresses:
        try:
            if _download(address, secret, entry, target) == (entry.size, entry.xxh3):
                return
            why = f"{address}: content does not match the manifest"
        except OSError as error:
            why = f"{address}: {os_error_reason(error)}"
    raise StorageUnusable("memory", why=f"{entry.path}: {why}")


def _download(address: str, secret: str, entry: ManifestEntry, target: Path) -> tuple[int, str]:
    host, _, port = address.rpartition(" ")
    state, size = xxhash.xxh3_128(), 0
    with (
        socket.create_connection((host, int(port)), timeout=_SOCKET_TIMEOUT_S) as connection,
        target.open("wb") as file,
    ):
        connection.sendall(msgspec.json.encode(_ShardRequest(secret, entry.path)) + b"\n")
        with connection.makefile("rb") as stream:
            announced = int.from_bytes(stream.read(_SIZE_BYTES), "big")
            while announced == entry.size and (
                chunk := stream.read(min(_CHUNK_BYTES, entry.size - size))
            ):
                state.update(chunk)
                file.write(chunk)
                size += len(chunk)
    return size, state.hexdigest()


def _own_address() -> str:
    """Return this host's address on the route to the job's master."""
    master = settings.read_text("MASTER_ADDR") or "127.0.0.1"
    with suppress(OSError):
        address_info = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(address_info[0], socket.SOCK_DGRAM) as probe:
            probe.connect(address_info[4])  # sends nothing
            return str(probe.getsockname()[0])
    return "127.0.0.1"

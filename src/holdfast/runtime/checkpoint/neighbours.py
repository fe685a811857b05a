"""Checkpoints in the memory of the hosts, in pieces: each host holds what its own ranks wrote, and its neighbour's.

Of N hosts (three or more) each holds two parts in N, and the loss of one of them loses nothing: what its ranks wrote
lies with the next host. A folder here is a checkpoint of its own, whose manifest names the pieces that the host holds;
beside it lies the manifest of the whole. To load, the first rank of each host hands out pieces over TCP, for as long
as the search takes, to who names the secret that rank 0 has made for it.
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

from holdfast import manifest, settings
from holdfast.errors import CheckpointUnreadable, PlaceUnusable
from holdfast.manifest import Entry, Manifest
from holdfast.runtime.checkpoint.places import Folder, troubles

#: The manifest of the whole checkpoint.
WHOLE = "whole.json"
#: Below the folder in memory: where a host puts together what it reads.
GATHERED = ".gathered"
_RANK = re.compile(r"(?:__|rank-)(\d+)")
_LIMIT_S = 30.0
_MOST_ASKED = 1 << 16
_PIECE_BYTES = 1 << 20
_SIZE_BYTES = 8


class Memory(Folder):
    """The part of each checkpoint that host ``node`` of ``nodes`` holds in its memory."""

    def __init__(self, path: Path, node: int = 0, nodes: int = 1) -> None:
        super().__init__(path, name="memory", durable=False)
        self._node, self._nodes = node, nodes

    def put(self, source: Path, what: Manifest) -> None:
        """Copy the pieces that this host holds. See :class:`Place`."""
        mine = tuple(entry for entry in what.files if self._node in holders(entry, what.ranks, self._nodes))
        part = manifest.parse(manifest.sealed(msgspec.structs.replace(what, files=mine)), self.name)
        with troubles(self.name):
            if self._has(part):
                return
            self._make_room(part)
            staged = self.staged("copy", what.step)
            try:
                for entry in part.files:
                    self._copy(source / entry.path, staged / entry.path, entry, what.step)
                (staged / WHOLE).write_bytes(manifest.sealed(what))
                self.declare(staged, part)
            finally:
                shutil.rmtree(staged, ignore_errors=True)


def holders(entry: Entry, ranks: int, nodes: int) -> tuple[int, int]:
    """The hosts that hold a file of a checkpoint that so many ranks wrote: the writer's, and the next one."""
    match = _RANK.search(entry.path)
    if match:
        home = min(int(match[1]), ranks - 1) * nodes // ranks
    else:  # the index, and what engines wrote
        home = xxhash.xxh3_64_intdigest(entry.path.encode()) % nodes
    return home, (home + 1) % nodes


def whole(folder: Path) -> Manifest:
    """The manifest of the whole checkpoint of which a folder in memory has pieces. Raises CheckpointUnreadable."""
    try:
        return manifest.parse((folder / WHOLE).read_bytes(), folder)
    except FileNotFoundError:
        return manifest.read(folder)
    except OSError as error:
        raise CheckpointUnreadable(folder, why=f"{WHOLE}: {(error.strerror or str(error)).lower()}") from error


class _Request(msgspec.Struct, frozen=True):
    secret: str
    path: str


@contextmanager
def handing_out(folder: Path, secret: str) -> Iterator[str]:
    """While the block runs, the files in ``folder`` are handed out at the address that is given: host and port."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    with socket.create_server(("", 0), family=family, backlog=64, dualstack_ipv6=both) as server:
        threading.Thread(target=_serve, args=(server, folder, secret), name="holdfast pieces", daemon=True).start()
        try:
            yield f"{_own_address()} {server.getsockname()[1]}"
        finally:
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)  # accept() returns


def _serve(server: socket.socket, folder: Path, secret: str) -> None:
    with suppress(OSError):  # it was closed
        while True:
            line, _ = server.accept()
            threading.Thread(target=_answer, args=(line, folder, secret), daemon=True).start()


def _answer(line: socket.socket, folder: Path, secret: str) -> None:
    with line, suppress(OSError, msgspec.MsgspecError, CheckpointUnreadable):
        line.settimeout(_LIMIT_S)
        with line.makefile("rb") as said:
            asked = msgspec.json.decode(said.readline(_MOST_ASKED), type=_Request)
        known = {entry.path for entry in manifest.read(folder).files}
        if hmac.compare_digest(asked.secret.encode(), secret.encode()) and asked.path in known:
            with (folder / asked.path).open("rb") as file:
                line.sendall(os.fstat(file.fileno()).st_size.to_bytes(_SIZE_BYTES, "big"))
                line.sendfile(file)


def fetch(addresses: Collection[str], secret: str, entry: Entry, target: Path) -> None:
    """Bring a file from one of the hosts that hold it, verified. Raises PlaceUnusable: none gives it."""
    why = "no host has it"
    target.parent.mkdir(parents=True, exist_ok=True)
    for address in addresses:
        try:
            if _fetched(address, secret, entry, target) == (entry.size, entry.xxh3):
                return
            why = f"{address}: it is not what was written"
        except OSError as error:
            why = f"{address}: {(error.strerror or str(error)).lower()}"
    raise PlaceUnusable("memory", why=f"{entry.path}: {why}")


def _fetched(address: str, secret: str, entry: Entry, target: Path) -> tuple[int, str]:
    host, _, port = address.rpartition(" ")
    state, size = xxhash.xxh3_128(), 0
    with socket.create_connection((host, int(port)), timeout=_LIMIT_S) as line, target.open("wb") as file:
        line.sendall(msgspec.json.encode(_Request(secret, entry.path)) + b"\n")
        with line.makefile("rb") as given:
            said = int.from_bytes(given.read(_SIZE_BYTES), "big")
            while said == entry.size and (piece := given.read(min(_PIECE_BYTES, entry.size - size))):
                state.update(piece)
                file.write(piece)
                size += len(piece)
    return size, state.hexdigest()


def _own_address() -> str:
    """The address at which the other hosts of the job reach this one: that from which it reaches their master."""
    master = settings.text("MASTER_ADDR") or "127.0.0.1"
    with suppress(OSError):
        found = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])  # sends nothing
            return str(probe.getsockname()[0])
    return "127.0.0.1"

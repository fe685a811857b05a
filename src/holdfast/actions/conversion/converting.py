"""The recipe of a conversion: read what is there, name, lay out, check, write, read back, and only then give a name."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import xxhash
from msgspec.structs import replace

from holdfast.actions.conversion import names, proving, staging, targets
from holdfast.actions.conversion.files import Archive, Seal, Written
from holdfast.actions.conversion.journal import synced
from holdfast.actions.conversion.layout import STRETCH, Layout, lay_out
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.staging import Staging
from holdfast.actions.conversion.writing import Writer, place
from holdfast.errors import CheckpointFailed, CheckpointUnreadable, PlaceUnusable
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Contents, Format, Gap

#: Of the form of journals and layouts: one of another version is not gone on with.
_VERSION = 1
_SHOWN = 3
#: What is being done, bytes done, bytes in all.
Tell = Callable[[str, int, int], None]


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. ``frozen`` and ``order``: see :func:`formats.read`.

    ``options.ranks`` may be 0: as many as wrote the source, or 1 where that is not known.
    """

    source: Path
    target: Path
    to: Format
    options: Options = Options()
    maps: tuple[names.Rename, ...] = ()
    keep_wrappers: bool = False
    frozen: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    overwrite: bool = False
    verify: bool = True


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. ``losses`` are sentences about what the target cannot hold.

    ``tensors`` of the model and ``states`` of the optimizer are in it, ``left_out`` and ``left_out_states`` are not.
    ``size`` bytes stand in ``files`` files of the target; ``resumed`` says that an earlier conversion was gone on with.
    ``proof`` is None where nothing was read back.
    """

    source: str
    target: str
    source_format: Format
    target_format: Format
    files: int
    size: int
    tensors: int
    states: int
    losses: tuple[str, ...]
    left_out: tuple[str, ...]
    left_out_states: tuple[str, ...]
    notes: tuple[str, ...]
    resumed: bool
    dtype: str | None
    elapsed_s: float
    proof: proving.Proof | None = None


def convert(wish: Wish, tell: Tell = lambda _what, _done, _all: None) -> Converted:
    """Convert.

    Raises:
        UsageError: the target is there already, names collide, or the source cannot be written in that form.
        CheckpointUnreadable: the source is not whole; nothing was written.
        PlaceUnusable: there is no room; nothing was written.
        CheckpointFailed: writing failed, and can be gone on with; or what was read back is not what was to be written.
    """
    began = time.monotonic()
    writer = targets.writer(wish.to, wish.options)
    staging.check_target(wish.target, (wish.source,), overwrite=wish.overwrite)
    contents = _source(wish)
    if not wish.options.ranks:
        ranks = contents.world_size if isinstance(contents.world_size, int) else 1
        wish = replace(wish, options=replace(wish.options, ranks=ranks))
    written: Written = writer.write(contents, wish.options)
    layout = lay_out(written.files)
    staged = Staging(wish.target)
    resumed = staged.open(_identity(contents, written, layout, wish))
    try:
        size, proof = _written(staged, contents, written, layout, wish, tell)
    except PlaceUnusable:
        if not resumed:
            staged.drop()
        raise
    finally:
        staged.journal.close()
    out, out_states = proving.left_out(contents, written.files, wish.options)
    return Converted(
        source=str(wish.source), target=str(wish.target), source_format=contents.format, target_format=wish.to,
        files=len(written.files) + (written.seal is not None), size=size, tensors=len(contents.tensors) - len(out),
        states=_states(contents, wish.options) - len(out_states), losses=written.losses, notes=contents.notes,
        resumed=resumed, dtype=wish.options.dtype, left_out=out, left_out_states=out_states, proof=proof,
        elapsed_s=round(time.monotonic() - began, 3),
    )  # fmt: skip


def _source(wish: Wish) -> Contents:
    """The source under the names that are wanted. Raises CheckpointUnreadable: something of it is missing."""
    contents = _whole(formats.read(wish.source, wish.frozen, wish.order), wish)
    if not contents.tensors:
        raise CheckpointUnreadable(wish.source, why="it has no tensor")
    staging.check_target(wish.target, (wish.source, Path(contents.root)), overwrite=wish.overwrite)
    return names.renamed(contents, wish.maps, keep_wrappers=wish.keep_wrappers)


def _whole(contents: Contents, wish: Wish) -> Contents:
    """The same where it is whole, or all of the model is that is asked for alone. Raises CheckpointUnreadable."""
    if not contents.gaps:
        return contents
    weights = all(gap.beside for gap in contents.gaps)
    if weights and not wish.options.optimizer:
        torn = {gap.file for gap in contents.gaps}
        return replace(
            contents, notes=(*contents.notes, f"left out, not being whole: {_gaps(contents.gaps)}"),
            files={name: size for name, size in contents.files.items() if name not in torn},
        )  # fmt: skip
    only = "; the weights are whole, and --no-optimizer takes them alone" if weights else ""
    next_step = f"`holdfast ckpt verify` tells all of it; take a whole one{only}"
    raise CheckpointUnreadable(wish.source, why=_gaps(contents.gaps), next_step=next_step)


def _gaps(gaps: Sequence[Gap]) -> str:
    ranks = (f" of rank {gap.rank}" if gap.rank is not None and "rank" not in gap.why else "" for gap in gaps)
    return _some([f"{gap.file or 'the file'}{rank}: {gap.why}" for gap, rank in zip(gaps, ranks, strict=True)])


def _some(clauses: Sequence[str]) -> str:
    more = f"; and {len(clauses) - _SHOWN:,} more" if len(clauses) > _SHOWN else ""
    return "; ".join(clauses[:_SHOWN]) + more


def _written(
    staged: Staging, contents: Contents, written: Written, layout: Layout, wish: Wish, tell: Tell
) -> tuple[int, proving.Proof | None]:
    """Write, prove, and give the name; the target's bytes."""
    before = _state_of(contents)
    size = sum(file.size for file in written.files)
    try:
        staging.check_space(staged, size, len(written.files))
        writer = Writer(Path(contents.root), staged.path, staged.journal, _Count("writing", size, tell))
        writer.write(written.files, layout)
        if written.seal is not None:
            size += _sealed(staged, written, written.seal)
    except OSError as error:
        raise staging.cut_off(staged, error) from error
    if _state_of(contents) != before:
        staged.drop()
        raise CheckpointFailed(f"the conversion to {wish.target}", why=f"{wish.source} was changed while it was read",
                               next_step="convert it again when nobody writes to it")  # fmt: skip
    proof = _proven(staged, contents, written, wish, _Count("reading back", size, tell)) if wish.verify else None
    try:
        staged.journal.settle()
        staged.finish()
    except OSError as error:
        raise staging.cut_off(staged, error) from error
    return size, proof


class _Count:
    """Adds up the bytes of one part of the work; threads may tell it at once, which at worst shows a little less."""

    def __init__(self, what: str, total: int, tell: Tell) -> None:
        self._what, self._total, self._tell, self._done = what, total, tell, 0

    def __call__(self, size: int) -> None:
        self._done += size
        self._tell(self._what, self._done, self._total)


def _sealed(staged: Staging, written: Written, seal: Seal) -> int:
    """Write the last file, which tells the hashes of all others; gives its bytes."""
    last = seal({file.path: (file.size, _hash(place(staged.path, file.path))) for file in written.files})
    path = place(staged.path, last.path)
    path.write_bytes(b"".join(part for part in last.parts if isinstance(part, bytes)))
    synced(path)
    return last.size


def _hash(path: Path) -> str:
    state = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(8 << 20):
            state.update(block)
    return state.hexdigest()


def _proven(staged: Staging, contents: Contents, written: Written, wish: Wish, count: _Count) -> proving.Proof:
    """Read it back. Raises CheckpointFailed: it is not what was to be written; the staged folder is removed."""
    try:
        order = tuple(contents.tensors) if wish.order else ()
        target = formats.read(staged.path, tuple(contents.frozen), order)
        why = _gaps([gap for gap in target.gaps if wish.options.optimizer or not gap.beside])
        proof = proving.prove(contents, target, written.files, wish.options, count)
    except CheckpointUnreadable as error:
        if str(staged.folder) not in error.subject:
            raise
        proof, why = proving.Proof(), str(error)
    else:
        if not why and target.format != wish.to:
            why = f"it reads as {target.format}, not {wish.to}"
    failures = (why, *proof.failures) if why else proof.failures
    if failures:
        staged.drop()
        raise CheckpointFailed(
            f"the conversion to {wish.target}", why=f"read back, it was not whole: {_some(failures)}",
            next_step="what was written is removed; convert again, and report it if that fails, too",
        )  # fmt: skip
    return proof


def _identity(contents: Contents, written: Written, layout: Layout, wish: Wish) -> str:
    """What makes two conversions the same one: the source's files, what was asked, and every byte that is known."""
    state = hashlib.blake2b(digest_size=16)
    for chunk in _told(written):
        state.update(len(chunk).to_bytes(8, "little") + chunk)
    about = {
        "schema": "holdfast/conversion/1", "version": _VERSION, "stretch": STRETCH, "stretches": len(layout.stretches),
        "source": str(wish.source.resolve()), "state": _state_of(contents), "to": wish.to,
        "options": msgspec.to_builtins(wish.options), "layout": state.hexdigest(),
    }  # fmt: skip
    return json.dumps(about, separators=(",", ":"))


def _told(written: Written) -> Iterator[bytes]:
    for file in written.files:
        yield f"{file.path}\0{file.size}".encode()
        for part in file.parts:
            if isinstance(part, bytes):
                yield part
            elif isinstance(part, Archive):
                for record in part.records:
                    yield f"{record.name}\0{record.size}".encode()
                    yield from (inner for inner in record.parts if isinstance(inner, bytes))


def _state_of(contents: Contents) -> str:
    """Size and time of every file of the source, as one hash."""
    state = hashlib.blake2b(digest_size=16)
    for name in sorted(contents.files):
        try:
            about = (Path(contents.root) / name if name else Path(contents.root)).stat()
        except OSError:
            continue
        state.update(f"{name}\0{about.st_size}\0{about.st_mtime_ns}\0".encode(errors="surrogateescape"))
    return state.hexdigest()


def _states(contents: Contents, options: Options) -> int:
    found: Mapping[str, Mapping[str, object]] = contents.optimizer.tensors if contents.optimizer is not None else {}
    return sum(len(each) for each in found.values()) if options.optimizer else 0

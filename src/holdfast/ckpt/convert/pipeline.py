"""The conversion pipeline: read, rename, lay out, write, read back, then publish the target."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import xxhash
from msgspec.structs import replace

from holdfast.ckpt.contents import (
    OPTIMIZER_OMITTED,
    CheckpointContents,
    CheckpointFormat,
    FileProblem,
)
from holdfast.ckpt.convert import names, staging, targets, verification
from holdfast.ckpt.convert.files import Archive, Seal, TargetFiles
from holdfast.ckpt.convert.journal import sync_path
from holdfast.ckpt.convert.layout import SEGMENT_BYTES, TargetLayout, build_layout
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.staging import Staging
from holdfast.ckpt.convert.writing import TargetWriter, target_path
from holdfast.ckpt.formats import registry
from holdfast.core.errors import CheckpointFailed, CheckpointUnreadable, StorageUnusable

#: Version of journals and layouts; those of another version are not resumed.
_VERSION = 1
_SHOWN = 3
_WITHOUT_OPTIMIZER = frozenset({CheckpointFormat.SAFETENSORS, CheckpointFormat.HUGGINGFACE})
#: Receives the current activity, bytes done, and total bytes.
ProgressCallback = Callable[[str, int, int], None]


class ConversionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to convert. ``frozen``, ``order``: see :func:`registry.read_checkpoint`.

    ``options.ranks`` 0: as many as wrote the source, or 1 if unknown.
    """

    source: Path
    target: Path
    to: CheckpointFormat
    options: ConvertOptions = ConvertOptions()
    maps: tuple[names.NameMap, ...] = ()
    keep_wrappers: bool = False
    frozen: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    overwrite: bool = False
    verify: bool = True


class ConversionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a conversion. ``losses``: sentences on data the target cannot hold.

    ``tensors`` of the model and ``states`` of the optimizer were written, ``left_out`` and
    ``left_out_states`` were not. The target has ``size`` bytes in ``files`` files; ``resumed``: an
    interrupted conversion was continued. ``optimizer_lost``: the source has optimizer state, and it
    could not be converted although the target can hold it. ``proof`` is None if the target was not
    read back.
    """

    source: str
    target: str
    source_format: CheckpointFormat
    target_format: CheckpointFormat
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
    optimizer_lost: bool = False
    proof: verification.ReadBackResult | None = None


def convert_checkpoint(
    request: ConversionRequest, on_progress: ProgressCallback = lambda _what, _done, _all: None
) -> ConversionResult:
    """Convert a checkpoint.

    Raises:
        UsageError: the target exists, names collide, or the source does not fit the target format.
        CheckpointUnreadable: the source is incomplete; nothing was written.
        StorageUnusable: there is not enough space; nothing was written.
        CheckpointFailed: writing failed and can be resumed, or the target differs from the source.
    """
    started = time.monotonic()
    writer = targets.load_writer(request.to, request.options)
    staging.check_target(request.target, (request.source,), overwrite=request.overwrite)
    contents = _read_source(request)
    if not request.options.ranks:
        ranks = contents.world_size if isinstance(contents.world_size, int) else 1
        request = replace(request, options=replace(request.options, ranks=ranks))
    target_files: TargetFiles = writer.write(contents, request.options)
    layout = build_layout(target_files.files)
    staged = Staging(request.target)
    resumed = staged.open(_identity(contents, target_files, layout, request))
    try:
        size, proof = _write_and_verify(
            staged, contents, target_files, layout, request, on_progress
        )
    except StorageUnusable:
        if not resumed:
            staged.discard()
        raise
    finally:
        staged.journal.close()
    lost = _lost_optimizer(contents, request)
    out, out_states = verification.left_out(contents, target_files.files, request.options)
    return ConversionResult(
        source=str(request.source),
        target=str(request.target),
        source_format=contents.format,
        target_format=request.to,
        files=len(target_files.files) + (target_files.seal is not None),
        size=size,
        tensors=len(contents.tensors) - len(out),
        states=_count_states(contents, request.options) - len(out_states),
        losses=(*lost, *target_files.losses),
        notes=tuple(note for note in contents.notes if note not in lost),
        optimizer_lost=bool(lost),
        resumed=resumed,
        dtype=request.options.dtype,
        left_out=out,
        left_out_states=out_states,
        proof=proof,
        elapsed_s=round(time.monotonic() - started, 3),
    )


def _lost_optimizer(contents: CheckpointContents, request: ConversionRequest) -> tuple[str, ...]:
    """Return why the optimizer state of the source was not converted; () if it was, or need not."""
    if not request.options.optimizer or request.to in _WITHOUT_OPTIMIZER:
        return ()
    return tuple(note for note in contents.notes if note.startswith(OPTIMIZER_OMITTED))


def _read_source(request: ConversionRequest) -> CheckpointContents:
    """Return the renamed source. Raises CheckpointUnreadable: it is incomplete."""
    contents = _require_complete(
        registry.read_checkpoint(request.source, request.frozen, request.order), request
    )
    if not contents.tensors:
        raise CheckpointUnreadable(request.source, why="it contains no tensors")
    staging.check_target(
        request.target, (request.source, Path(contents.root)), overwrite=request.overwrite
    )
    return names.rename_contents(contents, request.maps, keep_wrappers=request.keep_wrappers)


def _require_complete(
    contents: CheckpointContents, request: ConversionRequest
) -> CheckpointContents:
    """Return the contents if all requested data is complete. Raises CheckpointUnreadable."""
    if not contents.problems:
        return contents
    weights_complete = all(problem.beside for problem in contents.problems)
    if weights_complete and not request.options.optimizer:
        damaged = {problem.file for problem in contents.problems}
        return replace(
            contents,
            notes=(
                *contents.notes,
                f"omitted (incomplete): {_describe_problems(contents.problems)}",
            ),
            files={name: size for name, size in contents.files.items() if name not in damaged},
        )
    only = "; or use --no-optimizer, because the weights are complete" if weights_complete else ""
    next_step = f"run `holdfast ckpt verify` for details; convert a complete checkpoint{only}"
    raise CheckpointUnreadable(
        request.source, why=_describe_problems(contents.problems), next_step=next_step
    )


def _describe_problems(problems: Sequence[FileProblem]) -> str:
    ranks = (
        f" of rank {problem.rank}" if problem.rank is not None and "rank" not in problem.why else ""
        for problem in problems
    )
    return _join_clauses(
        [
            f"{problem.file or 'the file'}{rank}: {problem.why}"
            for problem, rank in zip(problems, ranks, strict=True)
        ]
    )


def _join_clauses(clauses: Sequence[str]) -> str:
    more = f"; and {len(clauses) - _SHOWN:,} more" if len(clauses) > _SHOWN else ""
    return "; ".join(clauses[:_SHOWN]) + more


def _write_and_verify(
    staged: Staging,
    contents: CheckpointContents,
    target_files: TargetFiles,
    layout: TargetLayout,
    request: ConversionRequest,
    on_progress: ProgressCallback,
) -> tuple[int, verification.ReadBackResult | None]:
    """Write, verify and publish the target; return its size and the comparison."""
    before = _source_state(contents)
    size = sum(file.size for file in target_files.files)
    try:
        staging.check_space(staged, size, len(target_files.files))
        writer = TargetWriter(
            Path(contents.root),
            staged.path,
            staged.journal,
            _ByteCounter("writing", size, on_progress),
        )
        writer.write(target_files.files, layout)
        if target_files.seal is not None:
            size += _write_seal(staged, target_files, target_files.seal)
    except OSError as error:
        raise staging.write_failure(staged, error) from error
    if _source_state(contents) != before:
        staged.discard()
        raise CheckpointFailed(
            f"the conversion to {request.target}",
            why=f"{request.source} changed while it was read",
            next_step="convert it again when no process writes to it",
        )
    proof = (
        _verify_target(
            staged, contents, target_files, request, _ByteCounter("reading back", size, on_progress)
        )
        if request.verify
        else None
    )
    try:
        staged.journal.wait()
        staged.finish()
    except OSError as error:
        raise staging.write_failure(staged, error) from error
    return size, proof


class _ByteCounter:
    """Adds up the bytes of one activity; concurrent updates may at worst undercount."""

    def __init__(self, what: str, total: int, on_progress: ProgressCallback) -> None:
        self._what, self._total, self._on_progress, self._done = what, total, on_progress, 0

    def __call__(self, size: int) -> None:
        self._done += size
        self._on_progress(self._what, self._done, self._total)


def _write_seal(staged: Staging, target_files: TargetFiles, seal: Seal) -> int:
    """Write the last file, a manifest of all others; return its size."""
    last = seal(
        {
            file.path: (file.size, _hash_file(target_path(staged.path, file.path)))
            for file in target_files.files
        }
    )
    path = target_path(staged.path, last.path)
    path.write_bytes(b"".join(part for part in last.parts if isinstance(part, bytes)))
    sync_path(path)
    return last.size


def _hash_file(path: Path) -> str:
    state = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as stream:
        while block := stream.read(8 << 20):
            state.update(block)
    return state.hexdigest()


def _verify_target(
    staged: Staging,
    contents: CheckpointContents,
    target_files: TargetFiles,
    request: ConversionRequest,
    counter: _ByteCounter,
) -> verification.ReadBackResult:
    """Read the target back and compare it.

    Raises:
        CheckpointFailed: it differs from the source; the staging folder is removed.
    """
    try:
        order = tuple(contents.tensors) if request.order else ()
        target = registry.read_checkpoint(staged.path, tuple(contents.frozen), order)
        why = _describe_problems(
            [
                problem
                for problem in target.problems
                if request.options.optimizer or not problem.beside
            ]
        )
        proof = verification.compare_with_source(
            contents, target, target_files.files, request.options, counter
        )
    except CheckpointUnreadable as error:
        if str(staged.folder) not in error.subject:
            raise
        proof, why = verification.ReadBackResult(), str(error)
    else:
        if not why and target.format != request.to:
            why = f"it was recognized as {target.format}, not {request.to}"
    failures = (why, *proof.failures) if why else proof.failures
    if failures:
        staged.discard()
        raise CheckpointFailed(
            f"the conversion to {request.target}",
            why=f"the written target failed verification: {_join_clauses(failures)}",
            next_step="it was removed; convert again, and report a bug if that fails, too",
        )
    return proof


def _identity(
    contents: CheckpointContents,
    target_files: TargetFiles,
    layout: TargetLayout,
    request: ConversionRequest,
) -> str:
    """Return what identifies a conversion: source files, request, and all literal bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in _layout_bytes(target_files):
        digest.update(len(chunk).to_bytes(8, "little") + chunk)
    about = {
        "schema": "holdfast/conversion/1",
        "version": _VERSION,
        "stretch": SEGMENT_BYTES,
        "stretches": len(layout.segments),
        "source": str(request.source.resolve()),
        "state": _source_state(contents),
        "to": request.to,
        "options": msgspec.to_builtins(request.options),
        "layout": digest.hexdigest(),
    }
    return json.dumps(about, separators=(",", ":"))


def _layout_bytes(target_files: TargetFiles) -> Iterator[bytes]:
    for file in target_files.files:
        yield f"{file.path}\0{file.size}".encode()
        for part in file.parts:
            if isinstance(part, bytes):
                yield part
            elif isinstance(part, Archive):
                for record in part.records:
                    yield f"{record.name}\0{record.size}".encode()
                    yield from (inner for inner in record.parts if isinstance(inner, bytes))


def _source_state(contents: CheckpointContents) -> str:
    """Return a hash over size and modification time of every source file."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(contents.files):
        try:
            stat = (Path(contents.root) / name if name else Path(contents.root)).stat()
        except OSError:
            continue
        digest.update(
            f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode(errors="surrogateescape")
        )
    return digest.hexdigest()


def _count_states(contents: CheckpointContents, options: ConvertOptions) -> int:
    tensors: Mapping[str, Mapping[str, object]] = (
        contents.optimizer.tensors if contents.optimizer is not None else {}
    )
    return sum(len(states) for states in tensors.values()) if options.optimizer else 0

"""Load a checkpoint: the ranks share the verification, then every rank reads what it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest
from holdfast.core.errors import (
    CheckpointFailed,
    CheckpointMismatch,
    CheckpointUnreadable,
    HoldfastError,
)
from holdfast.training.checkpoint import deepspeed_engines, rng_state
from holdfast.training.checkpoint.state import (
    MISSING,
    OTHER_SHAPE,
    TrainingState,
    find_mismatches,
    unpack_rank_state,
)
from holdfast.training.checkpoint.storage.hashing import VerifiedFiles
from holdfast.training.checkpoint.storage.shard_files import (
    MAX_THREADS,
    ShardReader,
    WeightsOnlyPlanner,
    assigned_files,
    available_cores,
)
from holdfast.training.checkpoint.store_agreement import StoreAgreement, to_checkpoint_failed
from holdfast.training.checkpoint.writing import rank_state_name

#: Maximum names per kind in a message; a model has thousands.
_MAX_NAMED = 200


def verify_checkpoint(folder: Path, agreement: StoreAgreement, verified: VerifiedFiles) -> Manifest:
    """Verify every byte of a checkpoint, each rank its share; return the manifest.

    ``verified`` keeps this rank's files for :func:`load_checkpoint`.

    Raises:
        CheckpointUnreadable: it is damaged or incomplete; on all ranks.
        CheckpointFailed: a rank did not answer in time.
    """
    why = ""
    manifest: Manifest | None = None
    try:
        manifest = checkpoint_manifest.read_manifest(folder)
        assigned = assigned_files(manifest, agreement.rank, agreement.world)
        damage = _find_damage(folder, assigned, verified)
        if damage is not None:
            why = f"{damage.path}: {damage.why}"
    except CheckpointUnreadable as error:
        why = error.why
    reason = agreement.agree(
        "proven", why.encode(), lambda answers: next((entry for entry in answers if entry), b"")
    )
    if reason or manifest is None:
        raise CheckpointUnreadable(folder, why=reason.decode(errors="replace"))
    return manifest


def load_checkpoint(
    folder: Path,
    state: TrainingState,
    agreement: StoreAgreement,
    verified: VerifiedFiles,
    *,
    strict: bool,
) -> tuple[Manifest, dict[str, Any]]:
    """Restore ``state`` from a verified checkpoint; return its manifest and this rank's own state.

    Raises:
        CheckpointMismatch: on every rank that the checkpoint does not fit; nothing was restored.
        CheckpointFailed: on all other ranks, or if a rank could not read it.
    """
    manifest = checkpoint_manifest.read_manifest(folder)
    tensors: dict[str, Any] = {}
    rank_state: dict[str, Any] = {}

    def check() -> None:
        tensors.update(_allocate(folder, manifest, state, strict=strict))

    def restore() -> None:
        _read_tensors(folder, tensors, verified)
        all_rank_states = [
            _read_rank_state(folder, manifest, rank) for rank in range(manifest.ranks)
        ]
        rank_state.update(all_rank_states[agreement.rank if agreement.rank < manifest.ranks else 0])
        deepspeed_engines.load_engines(state.engines, folder)
        state.restore(tensors, rank_state, all_rank_states)
        rng_state.restore(rank_state["random"])
        if rank_state["rank"] != agreement.rank:
            rng_state.reseed(agreement.rank)

    _run_on_all_ranks(agreement, "fits", check)
    _run_on_all_ranks(agreement, "loaded", restore)
    return manifest, rank_state


def _run_on_all_ranks(agreement: StoreAgreement, what: str, act: Callable[[], None]) -> None:
    """Run ``act`` on all ranks; a failure on one is raised on all."""
    problem: HoldfastError | None = None
    try:
        act()
    except Exception as error:  # noqa: BLE001 - reported to all ranks
        problem = (
            error
            if isinstance(error, HoldfastError)
            else to_checkpoint_failed(agreement.subject, error)
        )
    try:
        agreement.agree(what, problem or b"")
    except CheckpointFailed as failure:
        raise problem or failure from None


def _find_damage(
    folder: Path, manifest: Manifest, verified: VerifiedFiles
) -> checkpoint_manifest.Damage | None:
    """Return the first damage among the files, reading several in parallel."""
    singles = [msgspec.structs.replace(manifest, files=(entry,)) for entry in manifest.files]
    with ThreadPoolExecutor(
        max(1, min(MAX_THREADS, available_cores())), "holdfast-verifier"
    ) as threads:
        damages_by_file = threads.map(
            lambda single: list(
                checkpoint_manifest.find_damage(folder, single, hashed=verified.hash_file)
            ),
            singles,
        )
        return next((damage for damages in damages_by_file for damage in damages), None)


def _allocate(
    folder: Path, manifest: Manifest, state: TrainingState, *, strict: bool
) -> dict[str, Any]:
    """Allocate tensors for the checkpoint's contents, after checking that they fit.

    Raises:
        CheckpointMismatch: with every name that does not fit.
        CheckpointUnreadable: its index is unreadable, or names a file missing in the manifest.
    """
    index = ShardReader(folder).read_metadata()
    proven_files = {entry.path for entry in manifest.files}
    for location in (index.storage_data or {}).values():
        if getattr(location, "relative_path", None) not in proven_files:
            why = (
                f"its index names {getattr(location, 'relative_path', location)!r}, which is "
                "not in its manifest"
            )
            raise CheckpointUnreadable(folder, why=why)
    template = state.template(index)
    planner = WeightsOnlyPlanner()
    planner.set_up_planner(template, index, is_coordinator=False)
    mismatches = find_mismatches(planner.state_dict, index)
    if mismatches and strict:
        raise CheckpointMismatch(
            f"the checkpoint {folder}",
            why="; ".join(_describe_mismatches(*entry) for entry in mismatches.items()),
        )
    for name in (*mismatches.get(MISSING, ()), *mismatches.get(OTHER_SHAPE, ())):
        *parents, last = planner.mappings[name]
        holder: Any = template
        for parent in parents:
            holder = holder[parent]
        del holder[last]
    return template


def _describe_mismatches(kind: str, names: Mapping[str, str]) -> str:
    reason = [f"{name}{detail}" for name, detail in islice(names.items(), _MAX_NAMED)]
    more = f" and {len(names) - _MAX_NAMED:,} more" if len(names) > _MAX_NAMED else ""
    return f"{len(names):,} {kind}: {', '.join(reason)}{more}"


def _read_tensors(folder: Path, tensors: dict[str, Any], verified: VerifiedFiles) -> None:
    """Read this rank's data with torch.distributed.checkpoint's planner, without communication."""
    reader, planner = ShardReader(folder, verified), WeightsOnlyPlanner(allow_partial_load=True)
    index = reader.read_metadata()
    planner.set_up_planner(tensors, index, is_coordinator=False)
    reader.set_up_storage_reader(index, is_coordinator=False)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _read_rank_state(folder: Path, manifest: Manifest, rank: int) -> dict[str, Any]:
    path = folder / rank_state_name(rank)
    if rank_state_name(rank) not in {entry.path for entry in manifest.files}:
        raise CheckpointUnreadable(folder, why=f"missing file {path.name}")
    return unpack_rank_state(path.read_bytes(), path)

"""One load: the ranks share the work of verifying, then every rank reads what it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from holdfast import manifest
from holdfast.errors import CheckpointFailed, CheckpointMismatch, CheckpointUnreadable, HoldfastError
from holdfast.manifest import Manifest
from holdfast.runtime.checkpoint import engines, randomness
from holdfast.runtime.checkpoint.hashing import hash_of
from holdfast.runtime.checkpoint.rounds import Round, as_failure
from holdfast.runtime.checkpoint.state import MISSING, OTHER_SHAPE, State, mismatches, unpacked
from holdfast.runtime.checkpoint.storage import MOST_THREADS, Reader, WeightsOnlyPlanner, threads_here
from holdfast.runtime.checkpoint.writing import name_of_rank

#: Names of a kind that are told in one message; a model has thousands.
_NAMED = 200


def proven(folder: Path, around: Round) -> Manifest:
    """The manifest of a checkpoint, every byte of which the ranks have held against it, each its share.

    Raises:
        CheckpointUnreadable: it is not whole, on all ranks alike.
        CheckpointFailed: a rank did not come.
    """
    why = ""
    found: Manifest | None = None
    try:
        found = manifest.read(folder)
        damage = _damage(folder, share_of(found, around.rank, around.world))
        if damage is not None:
            why = f"{damage.path}: {damage.why}"
    except CheckpointUnreadable as error:
        why = error.why
    told = around.agree("proven", why.encode(), lambda given: next((each for each in given if each), b""))
    if told or found is None:
        raise CheckpointUnreadable(folder, why=told.decode(errors="replace"))
    return found


def load_from(folder: Path, state: State, around: Round, *, strict: bool) -> tuple[Manifest, dict[str, Any]]:
    """Restore ``state`` from a proven checkpoint; its manifest, and this rank's own part.

    Raises:
        CheckpointMismatch: on every rank to which the checkpoint does not fit; nothing was taken then.
        CheckpointFailed: on all others, or where a rank could not read it.
    """
    found = manifest.read(folder)
    tensors: dict[str, Any] = {}
    own: dict[str, Any] = {}

    def fit() -> None:
        tensors.update(_room(folder, found, state, strict=strict))

    def take() -> None:
        _read(folder, tensors)
        everyones = [_own(folder, found, rank) for rank in range(found.ranks)]
        own.update(everyones[around.rank if around.rank < found.ranks else 0])
        engines.load(state.engines, folder)
        state.give(tensors, own, everyones)
        randomness.restore(own["random"])
        if own["rank"] != around.rank:
            randomness.spread(around.rank)

    _together(around, "fits", fit)
    _together(around, "loaded", take)
    return found, own


def _together(around: Round, what: str, act: Callable[[], None]) -> None:
    """Do it on all ranks; where it fails on one, all know."""
    problem: HoldfastError | None = None
    try:
        act()
    except Exception as error:  # noqa: BLE001 - all ranks are told
        problem = error if isinstance(error, HoldfastError) else as_failure(around.subject, error)
    try:
        around.agree(what, problem or b"")
    except CheckpointFailed as failure:
        raise problem or failure from None


def _damage(folder: Path, found: Manifest) -> manifest.Damage | None:
    """The first damage of those files, several of which are read at once."""
    singles = [msgspec.structs.replace(found, files=(entry,)) for entry in found.files]
    with ThreadPoolExecutor(max(1, min(MOST_THREADS, threads_here())), "holdfast-verifier") as threads:
        found_in = threads.map(lambda single: list(manifest.damages(folder, single, hashed=hash_of)), singles)
        return next((damage for damages in found_in for damage in damages), None)


def share_of(found: Manifest, index: int, count: int) -> Manifest:
    """The manifest with share ``index`` of ``count`` of the files, so that all shares have about as many bytes."""
    loads = [0] * count
    mine = []
    for entry in sorted(found.files, key=lambda each: (-each.size, each.path)):
        share = loads.index(min(loads))
        loads[share] += entry.size + 1
        if share == index:
            mine.append(entry)
    return msgspec.structs.replace(found, files=tuple(mine))


def _room(folder: Path, proof: Manifest, state: State, *, strict: bool) -> dict[str, Any]:
    """Room for what is in the checkpoint, which fits.

    Raises:
        CheckpointMismatch: with every name that does not.
        CheckpointUnreadable: its index cannot be read, or names a file that the manifest does not prove.
    """
    index = Reader(folder).read_metadata()
    proven_files = {entry.path for entry in proof.files}
    for place in (index.storage_data or {}).values():
        if getattr(place, "relative_path", None) not in proven_files:
            why = f"its index names {getattr(place, 'relative_path', place)!r}, which its manifest does not"
            raise CheckpointUnreadable(folder, why=why)
    template = state.template(index)
    planner = WeightsOnlyPlanner()
    planner.set_up_planner(template, index, is_coordinator=False)
    found = mismatches(planner.state_dict, index)
    if found and strict:
        raise CheckpointMismatch(f"the checkpoint {folder}", why="; ".join(_listed(*each) for each in found.items()))
    for name in (*found.get(MISSING, ()), *found.get(OTHER_SHAPE, ())):
        *parents, last = planner.mappings[name]
        holder: Any = template
        for parent in parents:
            holder = holder[parent]
        del holder[last]
    return template


def _listed(kind: str, names: Mapping[str, str]) -> str:
    told = [f"{name}{detail}" for name, detail in islice(names.items(), _NAMED)]
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{len(names):,} {kind}: {', '.join(told)}{more}"


def _read(folder: Path, tensors: dict[str, Any]) -> None:
    """Read into the tensors, each rank what it needs: torch.distributed.checkpoint's own steps, without talking."""
    reader, planner = Reader(folder), WeightsOnlyPlanner(allow_partial_load=True)
    index = reader.read_metadata()
    planner.set_up_planner(tensors, index, is_coordinator=False)
    reader.set_up_storage_reader(index, is_coordinator=False)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _own(folder: Path, found: Manifest, rank: int) -> dict[str, Any]:
    path = folder / name_of_rank(rank)
    if name_of_rank(rank) not in {entry.path for entry in found.files}:
        raise CheckpointUnreadable(folder, why=f"it has no {path.name}")
    return unpacked(path.read_bytes(), path)

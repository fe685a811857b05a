"""Writes a folder for ``holdfast.Checkpoint(root).load()`` at any world size; it is the root.

step-0000000120/__0_0.distcp, .metadata   weights, buffers and optimizer, as in DCP
step-0000000120/rank-00000.state          optimizer groups, scheduler, configuration
step-0000000120/manifest.json             hashes of all files; written last
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.ckpt.contents import CheckpointContents, Tensor
from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.files import TargetFile, TargetFiles
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import dcp, state_dicts
from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry

#: Keys of scheduler states in other frameworks.
_SCHEDULERS = ("scheduler", "lr_scheduler", "lr_schedulers", "schedulers")
_EXTRA = "extra."


def write(contents: CheckpointContents, options: ConvertOptions) -> TargetFiles:
    """Write the folder; the manifest is its last file."""
    step = contents.step if isinstance(contents.step, int) else 0
    prefix = f"{checkpoint_manifest.folder_name(step)}/"
    folder = dcp.DcpFolderBuilder(options.ranks, prefix)
    dcp.add_model(folder, contents, options)
    optimizer = contents.optimizer if options.optimizer else None
    if optimizer is not None:
        dcp.add_optimizer(folder, contents, optimizer, groups=False)
    for name, value in contents.values.items():
        if isinstance(value, Tensor) and name.startswith(_EXTRA):
            folder.tensor(tuple(name.split(".")), value, value.dtype, sharded=False)
    stateful, plain = _split_values(contents)
    shared_state = {
        "random": {},
        "groups": _named_groups(contents, options),
        "config": plain.pop("config", None),
        "stateful": stateful,
    }
    ranks = [
        TargetFile(
            f"{prefix}rank-{rank:05d}.state",
            (Storages().file({"rank": rank, "world": options.ranks, **shared_state}),),
        )
        for rank in range(options.ranks)
    ]

    def seal(written: Mapping[str, tuple[int, str]]) -> TargetFile:
        files = tuple(
            ManifestEntry(path=path.removeprefix(prefix), size=size, xxh3=xxh3)
            for path, (size, xxh3) in written.items()
        )
        now = time.time()
        manifest = Manifest(
            step=step, began=now, at=now, ranks=options.ranks, files=files, values=plain
        )
        return TargetFile(
            f"{prefix}{checkpoint_manifest.FILE}", (checkpoint_manifest.encode_sealed(manifest),)
        )

    return TargetFiles((*folder.files(), *ranks), tuple(_describe_losses(contents, options)), seal)


def _named_groups(contents: CheckpointContents, options: ConvertOptions) -> dict[str, Any]:
    """Return the groups by parameter name, as in ``training.checkpoint.optimizers``."""
    optimizer = contents.optimizer
    if optimizer is None or not options.optimizer:
        return {}
    return {
        "": [
            {**state_dicts.plain_options(group), "params": list(group.params)}
            for group in state_dicts.optimizer_groups(contents, optimizer)
        ]
    }


def _split_values(contents: CheckpointContents) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return states of objects by name, and plain values for the manifest."""
    scheduler = state_dicts.scheduler_state(contents)
    stateful: dict[str, Any] = {".scheduler": dict(scheduler)} if scheduler is not None else {}
    plain: dict[str, Any] = {}
    for key, value in state_dicts.nested_values(contents).items():
        if key == "scaler" and isinstance(value, dict):
            stateful[".scaler"] = value
        elif (
            isinstance(value, dict)
            and key != "config"
            and (scheduler is None or key not in _SCHEDULERS)
        ):
            stateful[key] = value
        elif key not in _SCHEDULERS:
            plain[key] = value
    return stateful, plain


def _describe_losses(contents: CheckpointContents, options: ConvertOptions) -> Iterator[str]:
    yield from state_dicts.describe_losses(contents, options)
    if not isinstance(contents.step, int):
        yield "The source does not record its step: step 0 was written."
    lost = [
        key
        for key, value in contents.values.items()
        if isinstance(value, Tensor) and not key.startswith(_EXTRA)
    ]
    if lost:
        yield (
            "Not written, because they belong to neither model nor optimizer: "
            f"{', '.join(sorted(lost)[:5])}."
        )

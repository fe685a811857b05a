"""A folder from which ``holdfast.Checkpoint(root).load()`` goes on, at any world size; the folder is its root.

step-0000000120/__0_0.distcp, .metadata   weights, buffers and optimizer, as torch.distributed.checkpoint has them
step-0000000120/rank-00000.state          the optimizer's groups, scheduler, configuration, other states
step-0000000120/manifest.json             every file's hash; written last, once the hashes are known
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast import manifest
from holdfast.actions.conversion.archives import Storages
from holdfast.actions.conversion.files import File, Written
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import dcp, state_dicts
from holdfast.facts.checkpoints.contents import Contents, Group, Tensor
from holdfast.facts.checkpoints.state_dicts.values import is_plain
from holdfast.manifest import Entry, Manifest

#: Where frameworks keep these; ours has them under names of its own.
_SCHEDULERS = ("scheduler", "lr_scheduler", "lr_schedulers", "schedulers")
_EXTRA = "extra."


def write(contents: Contents, options: Options) -> Written:
    """The folder; its last file is the manifest."""
    step = contents.step if isinstance(contents.step, int) else 0
    below = f"{manifest.name_of(step)}/"
    folder = dcp.Folder(options.ranks, below)
    dcp.put_model(folder, contents, options)
    optimizer = contents.optimizer if options.optimizer else None
    if optimizer is not None:
        dcp.put_optimizer(folder, contents, optimizer, groups=False)
    for name, value in contents.values.items():
        if isinstance(value, Tensor) and name.startswith(_EXTRA):
            folder.tensor(tuple(name.split(".")), value, value.dtype, divided=False)
    stateful, plain = _values(contents)
    own = {
        "random": {},
        "groups": _groups(contents, options),
        "config": plain.pop("config", None),
        "stateful": stateful,
    }
    ranks = [
        File(f"{below}rank-{rank:05d}.state", (Storages().file({"rank": rank, "world": options.ranks, **own}),))
        for rank in range(options.ranks)
    ]

    def seal(written: Mapping[str, tuple[int, str]]) -> File:
        files = tuple(Entry(path=path.removeprefix(below), size=size, xxh3=xxh3)
                      for path, (size, xxh3) in written.items())  # fmt: skip
        now = time.time()
        found = Manifest(step=step, began=now, at=now, ranks=options.ranks, files=files, values=plain)
        return File(f"{below}{manifest.FILE}", (manifest.sealed(found),))

    return Written((*folder.files(), *ranks), tuple(_losses(contents, options)), seal)


def _groups(contents: Contents, options: Options) -> dict[str, Any]:
    """The groups of the one optimizer by names, as ``runtime.checkpoint.optimizers`` has them."""
    optimizer = contents.optimizer
    if optimizer is None or not options.optimizer:
        return {}
    return {"": [{**_options(group), "params": list(group.params)} for group in dcp.groups_of(contents, optimizer)]}


def _options(group: Group) -> dict[str, Any]:
    return {key: value for key, value in group.options.items() if key != "param_names" and is_plain(value)}


def _values(contents: Contents) -> tuple[dict[str, Any], dict[str, Any]]:
    """States of objects by name, and what is no state but a number or text, for the manifest."""
    scheduler = state_dicts.scheduler(contents)
    stateful: dict[str, Any] = {".scheduler": dict(scheduler)} if scheduler is not None else {}
    plain: dict[str, Any] = {}
    for key, value in state_dicts.values(contents).items():
        if key == "scaler" and isinstance(value, dict):
            stateful[".scaler"] = value
        elif isinstance(value, dict) and key != "config" and (scheduler is None or key not in _SCHEDULERS):
            stateful[key] = value
        elif key not in _SCHEDULERS:
            plain[key] = value
    return stateful, plain


def _losses(contents: Contents, options: Options) -> Iterator[str]:
    yield from state_dicts.left_out(contents, options)
    if not isinstance(contents.step, int):
        yield "The source does not say its step: it was written as step 0."
    lost = [key for key, value in contents.values.items() if isinstance(value, Tensor) and not key.startswith(_EXTRA)]
    if lost:
        yield f"Not in it, because they are neither the model's nor its optimizer's: {', '.join(sorted(lost)[:5])}."

"""The files of a DeepSpeed checkpoint: which of them are there by their names, and what is in each.

DeepSpeed writes a folder for each tag, and the file ``latest`` beside it that names one (deepspeed/runtime/engine.py):

    mp_rank_00_model_states.pt                        the model, of ZeRO-1 and 2
    zero_pp_rank_0_mp_rank_00_model_states.pt         a rank's part of the model, of ZeRO-3
    [bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt  a rank's part of the fp32 weights and of the optimizer's state

``pp_rank`` is the data-parallel rank, ``mp_rank`` the tensor- and pipeline-parallel one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints.contents import Gap
from holdfast.facts.checkpoints.files import torch_files
from holdfast.facts.checkpoints.files.gaps import gap_of
from holdfast.facts.checkpoints.files.torch_files import TorchFile

#: More ranks than any job has; a file that claims more is not believed.
MOST_RANKS = 1 << 17
LATEST = "latest"
LATEST_UNIVERSAL = "latest_universal"

_STATES = re.compile(
    r"(?:(?P<kind>(?:bf16_|fp16_)?)zero_pp_rank_(?P<dp>\d{1,6})_)?mp_rank_(?P<mp>\d{1,6})(?:_\d{3})?"
    r"_(?P<what>model|optim)_states\.pt\Z"
)
_EXPERTS = re.compile(r"(?:layer_\d+_expert_\d+_mp_rank_\d+_model|expp_rank_\d+_mp_rank_\d+_optim)_states\.pt\Z")
_LAYERS = re.compile(r"layer_\d+-model_\d+-model_states\.pt\Z")
#: What of a model's file names its parameters.
_NAMES = "module"
#: The mp rank and the data-parallel rank (-1: the file is of all of them).
Place = tuple[int, int]


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """What is there by names alone: the files of a tag by their places, and those that are in the way of another.

    ``sizes`` has the bytes of every file of DeepSpeed's in the folder.
    """

    models: Mapping[Place, str]
    optims: Mapping[Place, str]
    experts: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    sizes: Mapping[str, int]

    @property
    def stage3(self) -> bool:
        """The model is divided, as in ZeRO-3."""
        return any(rank >= 0 for _, rank in self.models)


class Shard(msgspec.Struct, frozen=True):
    """One file that was read: its path below the root, whose it is, and what it describes."""

    file: str
    place: Place
    read: TorchFile

    @property
    def rank(self) -> int:
        """The data-parallel rank."""
        return max(self.place[1], 0)


def tag_folder(path: Path, name: str = LATEST) -> Path | None:
    """The folder that the file ``latest`` in ``path`` names; None where there is no such file.

    Raises:
        CheckpointUnreadable: it names none that is there, or one outside of ``path``.
    """
    if not (path / name).is_file():  # a pipe would be waited for
        return None
    try:
        with (path / name).open("rb") as stream:
            tag = stream.read(4096).decode().strip()
    except OSError:
        return None
    except UnicodeDecodeError as error:
        raise CheckpointUnreadable(path, why=f"its file {name} holds no name") from error
    if not tag or tag.startswith("/") or ".." in tag.split("/") or "\0" in tag or len(tag) > 255:
        raise CheckpointUnreadable(path, why=f"its file {name} names no folder in it ({tag[:80]!r})")
    folder = path / tag
    if not folder.is_dir():
        raise CheckpointUnreadable(path, why=f"its file {name} names {tag[:80]!r}, and no such folder is there")
    return folder


def names_in(folder: Path) -> Names:
    """DeepSpeed's files in the folder of a tag. Raises CheckpointUnreadable: the folder cannot be listed."""
    try:
        with os.scandir(folder) as entries:
            sizes = {each.name: each.stat().st_size for each in entries if each.is_file()}
    except OSError as error:
        raise CheckpointUnreadable(folder, why=(error.strerror or str(error)).lower()) from error
    found = {name: match for name in sorted(sizes) if (match := _STATES.match(name))}
    models = {name: match for name, match in found.items() if match["what"] == "model"}
    optims = {name: match for name, match in found.items() if match["what"] == "optim" and match["dp"] is not None}
    divided = sum(match["dp"] is not None for match in models.values())
    wanted = {name: each for name, each in models.items() if (each["dp"] is not None) == (divided > 0)}
    kinds = Counter(match["kind"] for match in optims.values())
    chosen = {name: each for name, each in optims.items() if each["kind"] == kinds.most_common(1)[0][0]}
    experts = tuple(name for name in sorted(sizes) if _EXPERTS.match(name))
    layers = tuple(name for name in sorted(sizes) if _LAYERS.match(name))
    ours = {*found, *experts, *layers}
    return Names(
        models={_place(match): name for name, match in wanted.items()},
        optims={_place(match): name for name, match in chosen.items()},
        experts=experts, layers=layers,
        strays=tuple(name for name in (*models, *optims) if name not in wanted and name not in chosen),
        sizes={name: size for name, size in sizes.items() if name in ours},
    )  # fmt: skip


def _place(match: re.Match[str]) -> Place:
    return int(match["mp"]), -1 if match["dp"] is None else int(match["dp"])


def read_all(folder: Path, files: Mapping[Place, str], gaps: list[Gap]) -> dict[Place, Shard]:
    """Those of the files that can be read; a gap for each that cannot.

    ZeRO-3 names every parameter in the file of each rank: those of the first rank are kept.
    """
    found: dict[Place, Shard] = {}
    kept: set[int] = set()
    for place, file in sorted(files.items()):
        try:
            read = torch_files.read(folder / file)
            if place[0] in kept and isinstance(read.value, Mapping):
                read = msgspec.structs.replace(read, value={**read.value, _NAMES: None})
            elif isinstance(read.value, Mapping) and isinstance(read.value.get(_NAMES), Mapping):
                kept.add(place[0])
            found[place] = Shard(file, place, read)
        except CheckpointUnreadable as error:
            gaps.append(gap_of(error, file, place[1] if place[1] >= 0 else None))
    return found

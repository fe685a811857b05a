"""Lists the files of a DeepSpeed checkpoint by name, and reads them.

DeepSpeed writes a folder per tag, and a file ``latest`` next to it that names one
(deepspeed/runtime/engine.py):

    mp_rank_00_model_states.pt                        the model (ZeRO-1 and 2)
    zero_pp_rank_0_mp_rank_00_model_states.pt         a rank's shard of the model (ZeRO-3)
    [bf16_]zero_pp_rank_0_mp_rank_00_optim_states.pt  a rank's fp32 weights and optimizer state

``pp_rank`` is the data-parallel rank, ``mp_rank`` the tensor- and pipeline-parallel one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.ckpt.contents import FileProblem
from holdfast.ckpt.files import torch_files
from holdfast.ckpt.files.torch_files import TorchFile
from holdfast.ckpt.files.unreadable_files import problem_of
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.text import os_error_reason

#: More ranks than any job has; a file that claims more is ignored.
MAX_RANKS = 1 << 17
LATEST = "latest"
LATEST_UNIVERSAL = "latest_universal"

_STATES = re.compile(
    r"(?:(?P<kind>(?:bf16_|fp16_)?)zero_pp_rank_(?P<dp>\d{1,6})_)?mp_rank_(?P<mp>\d{1,6})(?:_\d{3})?"
    r"_(?P<what>model|optim)_states\.pt\Z"
)
_EXPERTS = re.compile(
    r"(?:layer_\d+_expert_\d+_mp_rank_\d+_model|expp_rank_\d+_mp_rank_\d+_optim)_states\.pt\Z"
)
_LAYERS = re.compile(r"layer_\d+-model_\d+-model_states\.pt\Z")
#: The key of a model file that names its parameters.
_NAMES = "module"
#: mp rank and data-parallel rank (-1: the file belongs to all of them).
RankPosition = tuple[int, int]


class TagFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a tag by position, and ``strays`` of a different kind.

    ``sizes`` has the size of every DeepSpeed file in the folder.
    """

    models: Mapping[RankPosition, str]
    optims: Mapping[RankPosition, str]
    experts: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    sizes: Mapping[str, int]

    @property
    def stage3(self) -> bool:
        """Return whether the model is sharded, as in ZeRO-3."""
        return any(rank >= 0 for _, rank in self.models)


class RankFile(msgspec.Struct, frozen=True):
    """One parsed file: its path below the root, the ranks it belongs to, and its content."""

    file: str
    position: RankPosition
    read: TorchFile

    @property
    def rank(self) -> int:
        """Return the data-parallel rank."""
        return max(self.position[1], 0)


def tag_folder(path: Path, name: str = LATEST) -> Path | None:
    """Return the folder that ``latest`` in ``path`` names; None without such a file.

    Raises:
        CheckpointUnreadable: the folder does not exist, or is outside ``path``.
    """
    if not (path / name).is_file():  # a pipe would block
        return None
    try:
        with (path / name).open("rb") as stream:
            tag = stream.read(4096).decode().strip()
    except OSError:
        return None
    except UnicodeDecodeError as error:
        raise CheckpointUnreadable(path, why=f"its file {name} is not text") from error
    if not tag or tag.startswith("/") or ".." in tag.split("/") or "\0" in tag or len(tag) > 255:
        raise CheckpointUnreadable(
            path, why=f"its file {name} does not name a folder ({tag[:80]!r})"
        )
    folder = path / tag
    if not folder.is_dir():
        raise CheckpointUnreadable(
            path, why=f"its file {name} names {tag[:80]!r}, but that folder does not exist"
        )
    return folder


def list_tag_files(folder: Path) -> TagFiles:
    """Return DeepSpeed's files in a tag folder. Raises CheckpointUnreadable."""
    try:
        with os.scandir(folder) as entries:
            sizes = {match.name: match.stat().st_size for match in entries if match.is_file()}
    except OSError as error:
        raise CheckpointUnreadable(folder, why=os_error_reason(error)) from error
    matches = {name: match for name in sorted(sizes) if (match := _STATES.match(name))}
    models = {name: match for name, match in matches.items() if match["what"] == "model"}
    optims = {
        name: match
        for name, match in matches.items()
        if match["what"] == "optim" and match["dp"] is not None
    }
    sharded_models = sum(match["dp"] is not None for match in models.values())
    wanted = {
        name: match
        for name, match in models.items()
        if (match["dp"] is not None) == (sharded_models > 0)
    }
    kinds = Counter(match["kind"] for match in optims.values())
    chosen = {
        name: match for name, match in optims.items() if match["kind"] == kinds.most_common(1)[0][0]
    }
    experts = tuple(name for name in sorted(sizes) if _EXPERTS.match(name))
    layers = tuple(name for name in sorted(sizes) if _LAYERS.match(name))
    ours = {*matches, *experts, *layers}
    return TagFiles(
        models={_position(match): name for name, match in wanted.items()},
        optims={_position(match): name for name, match in chosen.items()},
        experts=experts,
        layers=layers,
        strays=tuple(
            name for name in (*models, *optims) if name not in wanted and name not in chosen
        ),
        sizes={name: size for name, size in sizes.items() if name in ours},
    )


def _position(match: re.Match[str]) -> RankPosition:
    return int(match["mp"]), -1 if match["dp"] is None else int(match["dp"])


def read_rank_files(
    folder: Path, files: Mapping[RankPosition, str], problems: list[FileProblem]
) -> dict[RankPosition, RankFile]:
    """Parse the files; those that cannot be read become problems.

    ZeRO-3 names every parameter in the file of each rank: only the first rank's names are kept.
    """
    rank_files: dict[RankPosition, RankFile] = {}
    named: set[int] = set()
    for position, file in sorted(files.items()):
        try:
            parsed = torch_files.read_torch_file(folder / file)
            if position[0] in named and isinstance(parsed.value, Mapping):
                parsed = msgspec.structs.replace(parsed, value={**parsed.value, _NAMES: None})
            elif isinstance(parsed.value, Mapping) and isinstance(
                parsed.value.get(_NAMES), Mapping
            ):
                named.add(position[0])
            rank_files[position] = RankFile(file, position, parsed)
        except CheckpointUnreadable as error:
            problems.append(problem_of(error, file, position[1] if position[1] >= 0 else None))
    return rank_files

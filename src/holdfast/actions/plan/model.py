"""The model that a plan is of: by a name, a Hugging Face config.json, or sizes; what of it is frozen or adapted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import BadValue, MissingFile, UnknownName
from holdfast.plan.described import Described
from holdfast.plan.models import KNOWN, Transformer
from holdfast.plan.towers import KNOWN_TOWERS, NF4, Lora, Tower, known_towers, towers_from_config

#: A config.json is some kilobytes.
_MOST_BYTES = 1 << 20
#: What names have besides a model's family and size.
_ADDED = re.compile(r"-(hf|base|instruct|chat|it|v0\.\d|vicuna|hermes)\b")
#: Sizes that can be given by hand, and those that have to be.
SIZES = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "experts", "active")
_NEEDED = ("layers", "hidden")
_HEAD = 128


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model of one or several towers; ``asked``: for what words of the command line, ``assumed``: what these left."""

    name: str
    asked: tuple[str, ...]
    towers: tuple[Tower, ...]
    assumed: tuple[str, ...] = ()
    #: The function that builds it, and what was counted, of a module of the user's own. Without towers its form is
    #: not known.
    source: str = ""
    described: Described | None = None

    @property
    def main(self) -> Transformer:
        """The tower that has the loss."""
        return self.towers[-1].model

    @property
    def plain(self) -> bool:
        """One tower, all of it trained: what every formula knows."""
        return len(self.towers) == 1 and self.towers[0].trained and self.towers[0].lora is None

    @property
    def params(self) -> int:
        """Of all towers, with projectors."""
        if self.described is not None:
            return self.described.params
        return sum(tower.model.params + tower.projector for tower in self.towers)


def find(text: str, sizes: Mapping[str, int], tell: Callable[[str], None] | None = None) -> Model:
    """The model that ``text`` names, or that the sizes describe where it is empty.

    Raises:
        UnknownName: no such model, or an architecture that is not known.
        BadValue, MissingFile: a file or sizes that describe none.
        MissingExtra: a module of the user's own, and torch is not installed.
    """
    if not text:
        return _of_sizes(sizes)
    if sizes:
        raise BadValue("the size", why=f"the model is {text!r} already", next_step="give a model or sizes, not both")
    if ".py:" in text:
        from holdfast.actions.plan import module as plan_module  # noqa: PLC0415 - it starts a process with torch

        return plan_module.found(text, tell)
    if text.endswith(".py"):
        raise BadValue(text, why="it names no function that builds a module", next_step=f"write {text}:FUNCTION")
    path = Path(text)
    if path.suffix == ".json" or text.startswith((".", "/", "~")) or path.is_dir():
        return _of_file(text, path.expanduser())
    towers = _named(text)
    return Model(name=_best_name(towers, text), asked=(text,), towers=towers)


def _key(name: str) -> str:
    """What is left of a name when its owner, its tuning and its punctuation are gone."""
    bare = _ADDED.sub("", name.casefold().rpartition("/")[2]).removeprefix("meta-")
    return re.sub(r"[^a-z0-9.]", "", bare)


def _named(text: str) -> tuple[Tower, ...]:
    keys = {_key(name): name for name in (*KNOWN, *KNOWN_TOWERS)}
    short = {re.sub(r"^llava-1\.\d-", "llava", name): name for name in KNOWN_TOWERS}
    wanted = _key(text[:200])
    found = keys.get(wanted) or short.get(wanted)
    if found is None and not wanted:
        raise UnknownName("model", text[:100], [*KNOWN_TOWERS, *KNOWN])
    return known_towers(found or text[:100])


def _best_name(towers: tuple[Tower, ...], text: str) -> str:
    """As it is listed."""
    named = next((name for name, parts in KNOWN_TOWERS.items() if parts == towers), "")
    return named or (towers[0].model.name if len(towers) == 1 else text)


def _of_file(text: str, path: Path) -> Model:
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise MissingFile(file, why=why, next_step="give a config.json, a folder with one, or a known name") from None
    if len(content) > _MOST_BYTES:
        raise BadValue(file, why=f"it is no configuration: it has more than {_MOST_BYTES:,} bytes")
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        raise BadValue(file, why="it is no JSON") from None
    if not isinstance(config, dict):
        raise BadValue(file, why="it is no Hugging Face configuration, which is a JSON object")
    name = config.get("_name_or_path")
    label = name if isinstance(name, str) and name else file.resolve().parent.name
    towers = towers_from_config(config, label)
    return Model(
        name=label, asked=(text,), towers=towers, assumed=tuple(said for each in towers for said in each.model.assumed)
    )


def _of_sizes(sizes: Mapping[str, int]) -> Model:
    missing = [f"--{name}" for name in _NEEDED if name not in sizes]
    if missing:
        raise BadValue("the model", why=f"neither a name nor {' and '.join(missing)} are given",
                       next_step="name one (llama3.1-8b), a config.json, or --layers and --hidden")  # fmt: skip
    hidden, assumed = sizes["hidden"], []

    def size(name: str, otherwise: Callable[[], int]) -> int:
        if name in sizes:
            return sizes[name]
        assumed.append(f"{name.replace('_', '-')} {otherwise():,}")
        return otherwise()

    heads = size("heads", lambda: max(1, hidden // _HEAD))
    if hidden % heads:
        raise BadValue("--heads", why=f"{hidden} wide, a layer cannot have {heads} heads")
    model = Transformer(
        name=f"{sizes['layers']} layers of {hidden}", layers=sizes["layers"], hidden=hidden, heads=heads,
        kv_heads=sizes.get("kv_heads", heads), head_width=hidden // heads,
        ffn=size("ffn", lambda: -(-8 * hidden // 3 // 256) * 256), vocab=size("vocab", lambda: 32000),
        experts=sizes.get("experts", 1), active=sizes.get("active", min(2, sizes.get("experts", 1))),
        assumed=tuple(assumed),
    )  # fmt: skip
    if heads % model.kv_heads or model.active > model.experts:
        raise BadValue("the size of the model", why="kv-heads has to divide heads, and active be at most experts")
    asked = tuple(word for name, size in sizes.items() for word in (f"--{name.replace('_', '-')}", str(size)))
    return Model(name=model.name, asked=asked, towers=(Tower(model=model),), assumed=tuple(assumed))


# ---- what is trained of it


def trained(model: Model, *, lora: str = "", quantized: bool = False, freeze: str = "") -> Model:
    """The same with adapters on its main tower (``lora``: "16" or "16:queries,values"), or with towers frozen.

    ``freeze``: ``vision``, ``language``, ``all`` (projectors and adapters are trained) or ``none``.

    Raises:
        BadValue: no such rank or tower.
    """
    towers = list(model.towers)
    if not towers and (lora or freeze):
        raise BadValue(f"--{'lora' if lora else 'freeze'} of {model.name}", why="its form is not known here",
                       next_step="let the function return the module as it will be trained")  # fmt: skip
    if freeze:
        towers = [
            msgspec.structs.replace(tower, trained=not _frozen(freeze, at, len(towers)))
            for at, tower in enumerate(towers)
        ]
    if lora:
        bytes_each = NF4 if quantized else 0.0
        towers[-1] = msgspec.structs.replace(towers[-1], trained=False, lora=_lora(lora), frozen_bytes=bytes_each)
    elif quantized:
        raise BadValue("--quantized", why="weights in 4 bits are trained by adapters alone", next_step="add --lora 16")
    words = [word for name, given in (("--lora", lora), ("--freeze", freeze)) if given for word in (name, given)]
    asked = (*model.asked, *words, *(["--quantized"] if quantized else []))
    return msgspec.structs.replace(model, towers=tuple(towers), asked=asked)


def _frozen(freeze: str, at: int, count: int) -> bool:
    if count == 1 and freeze == "vision":
        raise BadValue("--freeze vision", why="the model has no image tower")
    return {"none": False, "all": True, "vision": at < count - 1, "language": at == count - 1}[freeze]


def _lora(text: str) -> Lora:
    rank, _, names = text.partition(":")
    if not (rank.isascii() and rank.isdigit() and 0 < len(rank) <= 6):
        raise BadValue("--lora", why=f"{text[:50]!r} is no rank", next_step="write 16, or 16:queries,values")
    return Lora(int(rank), tuple(names.split(","))) if names else Lora(int(rank))


def describe(model: Model) -> dict[str, Any]:
    """For scripts."""
    return {
        "name": model.name, "params": model.params, "assumed": model.assumed,
        "towers": [
            {**msgspec.to_builtins(tower.model), "trained": tower.trained, "tokens": tower.tokens,
             "lora": msgspec.to_builtins(tower.lora), "params": tower.model.params}
            for tower in model.towers
        ],
    }  # fmt: skip

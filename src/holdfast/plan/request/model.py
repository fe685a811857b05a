"""Find the planned model by name, file, sizes or code; freeze parts or add adapters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.errors import InvalidValue, MissingFile, UnknownName
from holdfast.core.text import os_error_reason
from holdfast.plan.models import KNOWN_MODELS, Transformer
from holdfast.plan.request.module import model_from_module
from holdfast.plan.request.plan_model import PlanModel
from holdfast.plan.submodels import (
    KNOWN_SUBMODELS,
    NF4_BYTES,
    Lora,
    Submodel,
    get_known_submodels,
    submodels_from_config,
)

#: A config.json has a few KiB.
_MAX_BYTES = 1 << 20
#: Suffixes of model names beside family and size.
_NAME_SUFFIXES = re.compile(r"-(hf|base|instruct|chat|it|v0\.\d|vicuna|hermes)\b")
_REQUIRED_SIZES = ("layers", "hidden")
_DEFAULT_HEAD_WIDTH = 128


def find_model(
    text: str, sizes: Mapping[str, int], report: Callable[[str], None] | None = None
) -> PlanModel:
    """Return the model that ``text`` names, or that the sizes describe if it is empty.

    Raises:
        UnknownName: no such model, or an unknown architecture.
        InvalidValue, MissingFile: the file or the sizes describe no model.
        MissingExtra: the model is a user's module, and torch is not installed.
    """
    if not text:
        return _model_from_sizes(sizes)
    if sizes:
        raise InvalidValue(
            "the model sizes",
            why=f"the model {text!r} is already given",
            next_step="use a model or sizes, not both",
        )
    if ".py:" in text:
        return model_from_module(text, report)
    if text.endswith(".py"):
        raise InvalidValue(
            text,
            why="the function that builds the module is missing",
            next_step=f"use {text}:FUNCTION",
        )
    path = Path(text)
    if path.suffix == ".json" or text.startswith((".", "/", "~")) or path.is_dir():
        return _model_from_file(text, path.expanduser())
    submodels = _find_named(text)
    return PlanModel(name=_display_name(submodels, text), arguments=(text,), submodels=submodels)


def _normalize_name(name: str) -> str:
    """Strip owner, tuning suffixes and punctuation from a model name."""
    bare = _NAME_SUFFIXES.sub("", name.casefold().rpartition("/")[2]).removeprefix("meta-")
    return re.sub(r"[^a-z0-9.]", "", bare)


def _find_named(text: str) -> tuple[Submodel, ...]:
    keys = {_normalize_name(name): name for name in (*KNOWN_MODELS, *KNOWN_SUBMODELS)}
    short = {re.sub(r"^llava-1\.\d-", "llava", name): name for name in KNOWN_SUBMODELS}
    key = _normalize_name(text[:200])
    name = keys.get(key) or short.get(key)
    if name is None and not key:
        raise UnknownName("model", text[:100], [*KNOWN_SUBMODELS, *KNOWN_MODELS])
    return get_known_submodels(name or text[:100])


def _display_name(submodels: tuple[Submodel, ...], text: str) -> str:
    """Return the name as listed."""
    name = next((name for name, listed in KNOWN_SUBMODELS.items() if listed == submodels), "")
    return name or (submodels[0].model.name if len(submodels) == 1 else text)


def _model_from_file(text: str, path: Path) -> PlanModel:
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            content = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        why = os_error_reason(error)
        raise MissingFile(
            file, why=why, next_step="pass a config.json, its directory, or a known model name"
        ) from None
    if len(content) > _MAX_BYTES:
        raise InvalidValue(file, why=f"larger than {_MAX_BYTES:,} bytes, so not a configuration")
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidValue(file, why="not valid JSON") from None
    if not isinstance(config, dict):
        raise InvalidValue(file, why="not a Hugging Face configuration (a JSON object)")
    name = config.get("_name_or_path")
    display_name = name if isinstance(name, str) and name else file.resolve().parent.name
    submodels = submodels_from_config(config, display_name)
    return PlanModel(
        name=display_name,
        arguments=(text,),
        submodels=submodels,
        assumed=tuple(
            assumption for submodel in submodels for assumption in submodel.model.assumed
        ),
    )


def _model_from_sizes(sizes: Mapping[str, int]) -> PlanModel:
    missing = [f"--{name}" for name in _REQUIRED_SIZES if name not in sizes]
    if missing:
        raise InvalidValue(
            "the model",
            why=f"no model name, and {' and '.join(missing)} missing",
            next_step="pass a name (llama3.1-8b), a config.json, or --layers and --hidden",
        )
    hidden, assumed = sizes["hidden"], []

    def size(name: str, default: Callable[[], int]) -> int:
        if name in sizes:
            return sizes[name]
        assumed.append(f"{name.replace('_', '-')} {default():,}")
        return default()

    heads = size("heads", lambda: max(1, hidden // _DEFAULT_HEAD_WIDTH))
    if hidden % heads:
        raise InvalidValue("--heads", why=f"{heads} heads do not divide the hidden size {hidden}")
    model = Transformer(
        name=f"{sizes['layers']} layers, hidden size {hidden}",
        layers=sizes["layers"],
        hidden=hidden,
        heads=heads,
        kv_heads=sizes.get("kv_heads", heads),
        head_width=hidden // heads,
        ffn=size("ffn", lambda: -(-8 * hidden // 3 // 256) * 256),
        vocab=size("vocab", lambda: 32000),
        experts=sizes.get("experts", 1),
        active=sizes.get("active", min(2, sizes.get("experts", 1))),
        assumed=tuple(assumed),
    )
    if heads % model.kv_heads or model.active > model.experts:
        raise InvalidValue(
            "the size of the model",
            why="--kv-heads must divide --heads, and --active must not exceed --experts",
        )
    arguments = tuple(
        argument
        for name, size in sizes.items()
        for argument in (f"--{name.replace('_', '-')}", str(size))
    )
    return PlanModel(
        name=model.name,
        arguments=arguments,
        submodels=(Submodel(model=model),),
        assumed=tuple(assumed),
    )


# ---- trained parts


def select_trained_parts(
    model: PlanModel, *, lora: str = "", quantized: bool = False, freeze: str = ""
) -> PlanModel:
    """Return the model with LoRA adapters on its last submodel, or with frozen submodels.

    ``lora``: "16" or "16:queries,values". ``freeze``: ``vision``, ``language``, ``all`` (projectors
    and adapters stay trained) or ``none``.

    Raises:
        InvalidValue: invalid rank or submodel.
    """
    submodels = list(model.submodels)
    if not submodels and (lora or freeze):
        raise InvalidValue(
            f"--{'lora' if lora else 'freeze'} of {model.name}",
            why="its architecture is not recognized",
            next_step="return the module from the function as it will be trained",
        )
    if freeze:
        submodels = [
            msgspec.structs.replace(submodel, trained=not _is_frozen(freeze, index, len(submodels)))
            for index, submodel in enumerate(submodels)
        ]
    if lora:
        frozen_bytes = NF4_BYTES if quantized else 0.0
        submodels[-1] = msgspec.structs.replace(
            submodels[-1], trained=False, lora=_parse_lora(lora), frozen_bytes=frozen_bytes
        )
    elif quantized:
        raise InvalidValue(
            "--quantized",
            why="4-bit weights can only be trained with adapters",
            next_step="add --lora 16",
        )
    options = [
        option
        for name, value in (("--lora", lora), ("--freeze", freeze))
        if value
        for option in (name, value)
    ]
    arguments = (*model.arguments, *options, *(["--quantized"] if quantized else []))
    return msgspec.structs.replace(model, submodels=tuple(submodels), arguments=arguments)


def _is_frozen(freeze: str, index: int, count: int) -> bool:
    if count == 1 and freeze == "vision":
        raise InvalidValue("--freeze vision", why="the model has no vision tower")
    return {
        "none": False,
        "all": True,
        "vision": index < count - 1,
        "language": index == count - 1,
    }[freeze]


def _parse_lora(text: str) -> Lora:
    rank, _, names = text.partition(":")
    if not (rank.isascii() and rank.isdigit() and 0 < len(rank) <= 6):
        raise InvalidValue(
            "--lora", why=f"{text[:50]!r} is not a rank", next_step="use 16 or 16:queries,values"
        )
    return Lora(int(rank), tuple(names.split(","))) if names else Lora(int(rank))


def model_json(model: PlanModel) -> dict[str, Any]:
    """Return the model for ``--json``."""
    return {
        "name": model.name,
        "params": model.params,
        "assumed": model.assumed,
        "towers": [
            {
                **msgspec.to_builtins(submodel.model),
                "trained": submodel.trained,
                "tokens": submodel.tokens,
                "lora": msgspec.to_builtins(submodel.lora),
                "params": submodel.model.params,
            }
            for submodel in model.submodels
        ],
    }

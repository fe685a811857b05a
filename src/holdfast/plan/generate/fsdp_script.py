"""Reads FSDP from a training script: the settings of ``fsdp2.json``, without running the script.

Read from its syntax tree: FullyShardedDataParallel and fully_shard with their policies, activation
checkpointing, the optimizer, clipping, autocast and torch.compile. A name stands for the only value
that the file assigns to it; what the script computes is reported instead of guessed.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.generate.fields import nest_keys
from holdfast.plan.generate.generated import UnmappedSetting

_FSDP1, _FSDP2 = "FullyShardedDataParallel", "fully_shard"
#: Names of strategies (torch/distributed/fsdp/api.py): whether weights are freed after forward.
_RESHARDS = {
    "FULL_SHARD": True,
    "SHARD_GRAD_OP": False,
    "HYBRID_SHARD": True,
    "_HYBRID_SHARD_ZERO2": False,
}
_DTYPES = ("float32", "bfloat16", "float16")
_CHECKPOINTING = frozenset(
    "apply_activation_checkpointing checkpoint_wrapper gradient_checkpointing_enable".split()
)
#: torch.optim's defaults of the options that configurations have.
_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
_OPTIMIZERS: Mapping[str, Mapping[str, Any]] = {
    "AdamW": {**_ADAM, "weight_decay": 0.01},
    "Adam": {**_ADAM, "weight_decay": 0.0},
    "SGD": {"lr": 1e-3, "momentum": 0.0, "weight_decay": 0.0},
}
_MAX_CHARACTERS, _MAX_STEPS = 1 << 18, 8
_UNKNOWN = object()


class ScriptSettings(msgspec.Struct, frozen=True):
    """The ``config`` of a script as in fsdp2.json; ``unread``: settings that it computes.

    ``wrapped``: classes whose modules are sharded one by one.
    """

    config: dict[str, Any]
    wrapped: tuple[str, ...]
    unread: tuple[UnmappedSetting, ...]


def read_script(text: str, origin: str) -> ScriptSettings:
    """Read a training script; ``origin`` names it in messages.

    Raises:
        InvalidValue: it is not Python, or uses no FSDP.
    """
    try:
        tree = ast.parse(text[:_MAX_CHARACTERS])
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidValue(origin, why=f"not a Python program ({type(error).__name__})") from None
    script = _Script(tree)
    if not script.uses_fsdp:
        raise InvalidValue(
            origin,
            why=f"it calls neither {_FSDP1} nor {_FSDP2}",
            next_step="pass a DeepSpeed JSON, an fsdp2.json, an Accelerate YAML, or the file that "
            "wraps the model",
        )
    script.read()
    settings = {"framework": "fsdp2", **script.settings}
    return ScriptSettings(nest_keys(settings), tuple(script.wrapped), tuple(script.unread))


class _Script:
    """The calls of a script, by the name that the called object has where it is defined."""

    def __init__(self, tree: ast.Module) -> None:
        self.settings: dict[str, Any] = {}
        self.wrapped: dict[str, None] = {}
        self.unread: list[UnmappedSetting] = []
        nodes = list(ast.walk(tree))
        self._aliases = {
            alias.asname: alias.name.rpartition(".")[2]
            for node in nodes
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
            if alias.asname
        }
        self._values = _only_assignments(nodes)
        self._calls: dict[str, list[ast.Call]] = {}
        for node in nodes:
            if isinstance(node, ast.Call):
                self._calls.setdefault(self._name(node.func), []).append(node)

    @property
    def uses_fsdp(self) -> bool:
        """Return whether the script wraps a model."""
        return bool(self._calls.keys() & {_FSDP1, _FSDP2})

    def read(self) -> None:
        """Fill ``settings``, ``wrapped`` and ``unread``."""
        for call in self._calls.get(_FSDP1, ()):
            self._read_fsdp1(call)
        self._read_fsdp2(self._calls.get(_FSDP2, ()))
        self._read_optimizer()
        if self._calls.keys() & _CHECKPOINTING:
            self.settings["recompute.layers"] = "full"
        if "offload_wrapper" in self._calls:
            self.settings["recompute.on_cpu"] = True
        if "compile" in self._calls:
            self.settings["compile"] = True
        for call in self._calls.get("clip_grad_norm_", ()):
            values = [*call.args, *(item.value for item in call.keywords if item.arg == "max_norm")]
            self._set("clip_grad_norm", values[-1] if values else None)
        for call in self._calls.get("autocast", ()):
            self._set("autocast", _keyword(call, "dtype"))
        for call in self._calls.get("DataLoader", ()):
            self._set("batch.micro", _keyword(call, "batch_size"))

    def _read_fsdp1(self, call: ast.Call) -> None:
        node = _keyword(call, "sharding_strategy")
        strategy = str(self._constant(node))
        if strategy in _RESHARDS:
            self.settings["fully_shard.reshard_after_forward"] = _RESHARDS[strategy]
        if node is not None and (strategy not in _RESHARDS or "HYBRID" in strategy):
            self._report("sharding_strategy", node, "set the mesh of replicas and shards yourself")
        self._read_precision(_keyword(call, "mixed_precision"))
        offload = self._resolve(_keyword(call, "cpu_offload"))
        if isinstance(offload, ast.Call):
            values = [_keyword(offload, "offload_params"), *offload.args]
            if any(self._constant(value) is True for value in values):
                self.settings["fully_shard.offload"] = "cpu"
        self._read_policy(_keyword(call, "auto_wrap_policy"))

    def _read_fsdp2(self, calls: list[ast.Call] | tuple[()]) -> None:
        found = [
            self._constant(_keyword(call, "reshard_after_forward"), default=True) for call in calls
        ]
        values = Counter(value for value in found if isinstance(value, int))
        if values:  # the root often differs from the layers
            self.settings["fully_shard.reshard_after_forward"] = values.most_common(1)[0][0]
        for call in calls:
            self._read_precision(_keyword(call, "mp_policy"))
            offload = self._resolve(_keyword(call, "offload_policy"))
            if isinstance(offload, ast.Call) and self._name(offload.func) == "CPUOffloadPolicy":
                self.settings["fully_shard.offload"] = "cpu"
                self._set("fully_shard.pin_memory", _keyword(offload, "pin_memory"))

    def _read_precision(self, node: ast.expr | None) -> None:
        policy = self._resolve(node)
        if isinstance(policy, ast.Call) and self._name(policy.func).startswith("MixedPrecision"):
            for name in ("param_dtype", "reduce_dtype"):
                self._set(f"fully_shard.{name}", _keyword(policy, name))
        elif node is not None:
            self._report("mixed precision", node, "the policy is not constructed in this file")

    def _read_policy(self, node: ast.expr | None) -> None:
        """Record the classes of a wrap policy: those in the set it is given."""
        policy = self._resolve(node)
        classes = [
            self._name(item)
            for part in (ast.walk(policy) if policy is not None else ())
            if isinstance(part, (ast.Set, ast.List, ast.Tuple))
            for item in part.elts
            if isinstance(item, (ast.Name, ast.Attribute))
        ]
        self.wrapped.update(dict.fromkeys(classes))
        if node is not None and not classes:
            self._report("auto_wrap_policy", node, "it names no classes")

    def _read_optimizer(self) -> None:
        found = [(name, call) for name in _OPTIMIZERS for call in self._calls.get(name, ())]
        for name, call in found[:1]:
            self.settings["optimizer.name"] = name
            for option, default in _OPTIMIZERS[name].items():
                self.settings[f"optimizer.{option}"] = default
                self._set(f"optimizer.{option}", _keyword(call, option))
            if len(call.args) > 1:
                self._set("optimizer.lr", call.args[1])
        for name, call in found[1:]:
            self._report(f"optimizer {name}", call, "a configuration has one optimizer")

    def _set(self, key: str, node: ast.expr | None) -> None:
        """Store a constant, or report that the script computes it."""
        if node is None:
            return
        value = self._constant(node, _UNKNOWN)
        if value is _UNKNOWN:
            kept = self.settings.get(key)
            kept_text = f"; {kept} is used instead" if kept is not None else ""
            self._report(key, node, f"the script computes it{kept_text}")
        elif value is not None:
            self.settings[key] = value

    def _report(self, setting: str, node: ast.expr, why: str) -> None:
        text = ast.unparse(node)[:60]
        entry = UnmappedSetting(f"{setting}: {text} (line {node.lineno})", why)
        if entry not in self.unread:
            self.unread.append(entry)

    def _name(self, node: ast.expr) -> str:
        """Return the last name of ``torch.optim.AdamW``, without an alias of the file."""
        name = node.attr if isinstance(node, ast.Attribute) else ""
        name = node.id if isinstance(node, ast.Name) else name
        return self._aliases.get(name, name)

    def _resolve(self, node: ast.expr | None) -> ast.expr | None:
        """Follow names to their only value."""
        for _ in range(_MAX_STEPS):
            if not isinstance(node, ast.Name) or node.id not in self._values:
                break
            node = self._values[node.id]
        return node

    def _constant(self, node: ast.expr | None, default: Any = None) -> Any:
        """Return a number, text, dtype or member of an enumeration; ``default``: it is none."""
        found = self._resolve(node)
        if isinstance(found, ast.Attribute) and (found.attr in _DTYPES or found.attr.isupper()):
            return found.attr
        if found is None:
            return default
        try:
            return ast.literal_eval(found)
        except (ValueError, TypeError, SyntaxError, RecursionError):
            return default


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((item.value for item in call.keywords if item.arg == name), None)


def _only_assignments(nodes: list[ast.AST]) -> dict[str, ast.expr]:
    """Return the value of each name that is assigned once."""
    values: dict[str, list[ast.expr]] = {}
    for name, value in _assignments(nodes):
        values.setdefault(name, []).append(value)
    return {name: found[0] for name, found in values.items() if len(found) == 1}


def _assignments(nodes: list[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from (
                (each.id, node.value) for each in node.targets if isinstance(each, ast.Name)
            )
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield from ((node.target.id, node.value),) * 2  # it has no single value

"""Random numbers and orders: ranks differ if every seed of the generator depends on the rank.

Python and NumPy seed themselves differently in each process if the program does not.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    RANK_KINDS,
    UNIFORM,
    Taint,
    TaintKind,
    Value,
    merge_content,
    merge_taint,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.mutations import store_mutation
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.misused_values import record_own_split
from holdfast.lint.library_models.selection import seed_taint

#: Generators that a function seeds, by canonical or last name.
_ALL = ("random", "numpy.random", "torch")
_SEEDS = {
    "random.seed": ("random",), "numpy.random.seed": ("numpy.random",),
    "torch.manual_seed": ("torch",), "torch.random.manual_seed": ("torch",),
    "seed_everything": _ALL, "set_seed": _ALL,
}  # fmt: skip
#: Functions that draw a number or an element, by generator.
_DRAWS = {
    "random": ("random", "randint", "randrange", "uniform", "choice", "choices", "sample", "gauss"),
    "numpy.random": ("rand", "random", "randint", "uniform", "choice", "random_sample", "normal"),
    "torch": ("rand", "randint", "bernoulli", "multinomial"),
}
#: Functions that shuffle a data set with the generator of torch and divide it.
_SPLITS = frozenset({"torch.utils.data.random_split", "torch.utils.data.dataset.random_split"})
#: Functions that draw an order, by generator.
_ORDERS = {
    "random.shuffle": "random", "random.sample": "random", "numpy.random.shuffle": "numpy.random",
    "numpy.random.permutation": "numpy.random", "torch.randperm": "torch",
}  # fmt: skip
_GENERATORS = {f"{home}.{name}": home for home, names in _DRAWS.items() for name in names}


def record_seed(state: InterpreterState, call: LibraryCall) -> None:
    """Record the seed of a generator, if the call sets one."""
    generators = _SEEDS.get(call.name) or _SEEDS.get(call.name.rpartition(".")[2], ())
    content = merge_content(call.arguments.all_values[:1])
    if call.arguments.is_constant("device_specific", answer=True):
        content = state.taint_source(call.frame, TaintKind.RANK, call.node)
    sources = tuple(source for source in content if source.kind in RANK_KINDS)
    for generator in generators:
        state.record_seed(generator, call.location, sources)


def with_random_taint(state: InterpreterState, call: LibraryCall, value: Value) -> Value:
    """Return the value of a draw, which differs between ranks that have their own seeds."""
    passed = call.arguments.get(2, "generator")
    if call.name in _SPLITS and (passed is None or passed.const is None):
        record_own_split(state, call, state.seed_sources("torch"))
    if call.name in _ORDERS:
        value = _with_drawn_order(state, call, value)
    generator = _GENERATORS.get(call.name)
    if generator is None or "generator" in call.arguments.named:
        return value
    taint = seed_taint(state.seed_sources(generator))
    if not taint and generator != "torch" and state.never_seeds:
        taint = state.taint_source(call.frame, TaintKind.DATA, call.node)
    return replace(value, content=merge_taint(value.content, taint)) if taint else value


def _with_drawn_order(state: InterpreterState, call: LibraryCall, value: Value) -> Value:
    """Return the value of a call that draws an order, or shuffles its argument."""
    passed = call.arguments.named.get("generator")
    home = _ORDERS[call.name]
    if passed is not None:
        drawn = passed.content
    else:
        drawn = seed_taint(state.seed_sources(home))
        if not drawn and home != "torch" and state.never_seeds:
            drawn = state.taint_source(call.frame, TaintKind.DATA, call.node)
    if call.name.endswith(".shuffle"):
        _shuffle(state, call, drawn)
        return UNIFORM
    return replace(value, order=merge_taint(value.order, drawn))


def shuffle(state: InterpreterState, call: LibraryCall) -> Value:
    """Model ``generator.shuffle(rows)``."""
    _shuffle(state, call, call.receiver.content)
    return UNIFORM


def permutation(_: InterpreterState, call: LibraryCall) -> Value | None:
    """Model ``generator.permutation(rows)`` of a generator with a seed of the rank."""
    if not call.receiver.content or not call.arguments.positional:
        return None
    return replace(call.first(), items=None, order=call.receiver.content, known=False)


def set_seed(state: InterpreterState, call: LibraryCall) -> Value:
    """Model ``generator.manual_seed(seed)``, which returns the generator."""
    content = merge_taint(*(value.content for value in call.arguments.all_values))
    seeded = Value(seed_taint(content), known=False)
    if call.receiver_node is not None:
        store_mutation(state, call.frame, call.receiver_node, seeded)
    return seeded


def seed_by_system(state: InterpreterState, call: LibraryCall) -> Value | None:
    """Model ``generator.seed()``, which takes the seed from the system: each rank has its own."""
    if call.arguments.all_values or call.receiver_node is None:
        return None
    own = state.taint_source(call.frame, TaintKind.DATA, call.node)
    store_mutation(state, call.frame, call.receiver_node, Value(own, known=False))
    return Value(own)


def _shuffle(state: InterpreterState, call: LibraryCall, drawn: Taint) -> None:
    node, rows = call.arguments.node(0, "x"), call.first("x")
    if drawn and node is not None:
        order = merge_taint(rows.order, drawn)
        store_mutation(state, call.frame, node, replace(rows, order=order, items=None))

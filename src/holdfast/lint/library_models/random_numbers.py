"""Random numbers: ranks draw different ones if every seed of the generator depends on the rank.

Python and NumPy seed themselves differently in each process if the program does not.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.lint.abstract_domain.values import (
    RANK_KINDS,
    TaintKind,
    Value,
    merge_content,
    merge_taint,
)
from holdfast.lint.abstract_state.arguments import LibraryCall
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
    generator = _GENERATORS.get(call.name)
    if generator is None or "generator" in call.arguments.named:
        return value
    taint = seed_taint(state.seed_sources(generator))
    if not taint and generator != "torch" and state.never_seeds:
        taint = state.taint_source(call.frame, TaintKind.DATA, call.node)
    return replace(value, content=merge_taint(value.content, taint)) if taint else value

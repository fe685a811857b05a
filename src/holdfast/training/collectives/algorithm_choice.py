"""Choose the fastest algorithm by measuring it on calls that are made anyway, jointly on all ranks.

For each power of two of bytes and each dtype of a group, the candidate algorithms take turns in the
first calls. A rank that arrives early waits for the others, so that the shortest time of all ranks
is the duration of a call. After all turns, one more small reduction (the minimum of these times)
gives all ranks the same numbers, and the fastest algorithm is used from then on. No call is made
only to measure.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist

from holdfast.training.collectives import timeout_history
from holdfast.training.collectives.algorithms.selection import (
    ONE_CALL,
    ReduceAlgorithm,
    candidate_algorithms,
    reduce_in_chunks,
)
from holdfast.training.collectives.backend_calls import start_all_reduce
from holdfast.training.collectives.bounded_wait import poll_until, wait_for_works
from holdfast.training.collectives.groups.arrivals import BoundedCall
from holdfast.training.collectives.groups.group_info import GroupState
from holdfast.training.collectives.reduction import Operation
from holdfast.training.collectives.scratch import drop_scratch

#: Turns of each algorithm; the first is not counted, because it creates connections and memory.
TURNS = 4
#: Another algorithm must take at most this share of the time of one call.
_MAX_TIME_SHARE = 0.9
#: Sizes and dtypes of one group that are measured; later ones are reduced in one call.
_MAX_KINDS = 256

_log = logging.getLogger("holdfast.comm")

#: Size (bit length of the bytes), dtype, and whether the operation is a sum.
ReduceKind = tuple[int, torch.dtype, bool]


class AlgorithmTrial:
    """Named algorithms for one size, the default first, and the seconds of their turns."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._times: list[float] = []

    def run_turn(
        self, runs: Sequence[Callable[[], None]], call: BoundedCall, nbytes: int
    ) -> int | None:
        """Run the algorithm whose turn it is; after the last turn return the best one's index."""
        began = time.perf_counter()
        runs[len(self._times) % len(runs)]()
        self._times.append(time.perf_counter() - began)
        if len(self._times) < TURNS * len(runs):
            return None
        times = torch.tensor(self._times, dtype=torch.float64, device=call.state.device)
        wait_for_works([start_all_reduce(times, dist.ReduceOp.MIN, call.state)], call)
        return self._find_best(times.view(TURNS, -1)[1:].T.tolist(), call, nbytes)

    def _find_best(self, times: list[list[float]], call: BoundedCall, nbytes: int) -> int:
        default, *others = (statistics.median(each) for each in times)
        fastest = min(others)
        best = 1 + others.index(fastest) if fastest < _MAX_TIME_SHARE * default else 0
        table = ", ".join(
            f"{name} {1e6 * seconds:,.0f} us"
            for name, seconds in zip(self._names, (default, *others), strict=True)
        )
        operation = call.signature.partition(" of ")[0]
        _log.info(
            "%s of about %s bytes in group %r: fastest is %s (%s)",
            operation,
            f"{nbytes:,}",
            call.state.name,
            self._names[best],
            table,
        )
        return best


class ReduceChoices(
    dict[ReduceKind, ReduceAlgorithm | tuple[AlgorithmTrial, list[ReduceAlgorithm]]]
):
    """The chosen algorithm, or the trial under way, of each kind of reduction of a group."""


class TransferChoices(dict[tuple[str, int], int | AlgorithmTrial]):
    """The index of the chosen algorithm, or the trial, of other operations, by name and size."""


def run_fastest(
    name: str, call: BoundedCall, nbytes: int, runs: Mapping[str, Callable[[], None]]
) -> None:
    """Run operation ``name`` by its fastest algorithm of ``runs``, which are equal on all ranks.

    The first is the default.
    """
    choices = call.state.cache.setdefault(TransferChoices, TransferChoices())
    key = (name, nbytes.bit_length())
    choice = choices.get(key)
    algorithms = list(runs.values())
    if choice is None:
        needs_trial = len(algorithms) > 1 and len(choices) < _MAX_KINDS
        choice = choices[key] = AlgorithmTrial(list(runs)) if needs_trial else 0
    if isinstance(choice, int):
        algorithms[choice]()
    elif (best := choice.run_turn(algorithms, call, nbytes)) is not None:
        choices[key] = best


def reduce_by_fastest(flat: torch.Tensor, op: Operation, call: BoundedCall) -> None:
    """Reduce a contiguous flat tensor in place, by the fastest algorithm found so far."""
    choices = call.state.cache.get(ReduceChoices)
    if choices is None:
        choices = call.state.cache[ReduceChoices] = ReduceChoices()
    key = (flat.nbytes.bit_length(), flat.dtype, op is dist.ReduceOp.SUM or op == dist.ReduceOp.SUM)
    choice = choices.get(key)
    if isinstance(choice, ReduceAlgorithm):
        choice.reduce(flat, op, call)
        return
    if choice is None:
        has_space = len(choices) < _MAX_KINDS
        algorithms = _algorithms_to_try(flat, op, call) if has_space else [ONE_CALL]
        if len(algorithms) == 1:
            if has_space:
                choices[key] = algorithms[0]
            algorithms[0].reduce(flat, op, call)
            return
        trial = AlgorithmTrial([algorithm.name for algorithm in algorithms])
        choice = choices[key] = trial, algorithms
    trial, algorithms = choice
    runs = [partial(algorithm.reduce, flat, op, call) for algorithm in algorithms]
    best = trial.run_turn(runs, call, flat.nbytes)
    if best is not None:
        choices[key] = algorithms[best]
        if algorithms[best] is not ONE_CALL:
            drop_scratch(call.state)


def is_one_call(state: GroupState, nbytes: int, dtype: torch.dtype) -> bool:
    """Return whether sums of this size and dtype are decided to use one call of the backend."""
    choices = state.cache.get(ReduceChoices)
    return choices is not None and choices.get((nbytes.bit_length(), dtype, True)) is ONE_CALL


def _algorithms_to_try(
    flat: torch.Tensor, op: Operation, call: BoundedCall
) -> list[ReduceAlgorithm]:
    """Return the algorithms to measure; a single one if there is no choice."""
    # An algorithm chosen by its speed cannot promise the same bits in every run.
    if torch.are_deterministic_algorithms_enabled():
        return [ONE_CALL]
    poll_until(lambda: timeout_history.is_history_shared(call.state), call)
    chunk_bytes = timeout_history.advised_chunk_bytes(call.state, flat.nbytes, call.limit_s)
    if chunk_bytes is not None:
        chunk = max(1, chunk_bytes // flat.element_size())
        name = f"chunks of {chunk:,} because of earlier timeouts"
        return [ReduceAlgorithm(name, partial(reduce_in_chunks, chunk=chunk))]
    return candidate_algorithms(flat, op, call)

"""What `holdfast bench` adds to the calls that it times: beside a loop written by hand (target: 1 %).

Blocks of calls take turns between a loop that reads the clock before and after all of them, as anybody would write it,
and the loop of `holdfast bench`, which reads it after every call. The blocks are short and the turns many, because the
machine itself changes from one second to the next by more than is looked for. Shown are the medians over the turns,
and the median of the ratios of each turn with its 95 % interval (order statistics of a sign test, no distribution
assumed). What a reading of the clock costs by itself is measured on calls that do nothing.
"""

from __future__ import annotations

import functools
import statistics
import time

from benchmarks.ranks import be_one, start

WARM = 20
#: float32 elements -> turns, and calls in a block.
SIZES = {2: (1200, 25), 16_384: (1200, 25), 262_144: (800, 6), 4_194_304: (400, 2)}


def _no_call() -> None:
    """Nothing."""


def _nothing() -> None:
    import torch  # noqa: PLC0415

    from holdfast.runtime.bench.loop import times_of  # noqa: PLC0415 - only ranks import torch

    device, calls = torch.device("cpu"), 20_000
    by_hand, by_loop = [], []
    for _ in range(15):
        began = time.perf_counter()
        for _ in range(calls):
            _no_call()
        by_hand.append((time.perf_counter() - began) / calls)
        by_loop.append(sum(times_of(_no_call, calls, device)) / calls)
    more = 1e9 * (statistics.median(by_loop) - statistics.median(by_hand))
    print(f"a call that does nothing: {more:.0f} ns more in the loop of holdfast bench")


def _sizes() -> None:
    import torch  # noqa: PLC0415 - only ranks import torch
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.runtime.bench.loop import times_of  # noqa: PLC0415

    for elements, (turns, calls) in SIZES.items():
        tensor = torch.zeros(elements)
        call = functools.partial(dist.all_reduce, tensor)
        by_hand: list[float] = []
        by_loop: list[float] = []
        for turn in range(WARM + turns):
            for ours in (turn % 2, 1 - turn % 2):  # each of them comes first as often
                dist.barrier()
                if ours:
                    by_loop.append(sum(times_of(call, calls, tensor.device)) / calls)
                    continue
                began = time.perf_counter()
                for _ in range(calls):
                    dist.all_reduce(tensor)
                by_hand.append((time.perf_counter() - began) / calls)
        if dist.get_rank() == 0:
            pairs = list(zip(by_hand[WARM:], by_loop[WARM:], strict=True))
            hand, loop = (1e6 * statistics.median(each) for each in zip(*pairs, strict=True))
            low, ratio, high = _median([ours / theirs for theirs, ours in pairs])
            print(f"{4 * elements:>12,} bytes, {dist.get_world_size()} ranks: by hand {hand:10.1f} us, holdfast bench "
                  f"{loop:10.1f} us, ratio {ratio:.4f} (95 %: {low:.4f} to {high:.4f})", flush=True)  # fmt: skip


def _median(ratios: list[float]) -> tuple[float, float, float]:
    """The median between the ends of its 95 % interval: so many of n fall below the median by chance alone."""
    ratios = sorted(ratios)
    middle, reach = len(ratios) / 2, 1.96 * len(ratios) ** 0.5 / 2
    return ratios[int(middle - reach)], statistics.median(ratios), ratios[min(int(middle + reach), len(ratios) - 1)]


def main() -> None:
    """Print the lines."""
    start(__name__, 1, "nothing")
    start(__name__, 2, "sizes")


if __name__ == "__main__":
    be_one({"nothing": _nothing, "sizes": _sizes})

"""Overhead of `holdfast bench` per timed call, compared with a handwritten loop (target: 1%).

Blocks of calls alternate between a loop that reads the clock before and after all of them and the
loop of `holdfast bench`, which reads it after every call. There are many turns of short blocks,
because the machine drifts by more than the overhead within a second. Prints the medians over the
turns, and the median ratio per turn with its 95% interval (order statistics of a sign test, no
distribution assumed). The cost of one clock reading is measured on calls that do nothing.
"""

from __future__ import annotations

import functools
import statistics
import time

from benchmarks.ranks import run_rank, start_ranks

WARM = 20
#: float32 elements -> turns, and calls in a block.
SIZES = {2: (1200, 25), 16_384: (1200, 25), 262_144: (800, 6), 4_194_304: (400, 2)}


def _no_call() -> None:
    """Do nothing."""


def _time_empty_calls() -> None:
    import torch  # noqa: PLC0415

    from holdfast.preflight.bench.torch_worker.timing_loop import time_calls  # noqa: PLC0415

    device, calls = torch.device("cpu"), 20_000
    plain_s, bench_s = [], []
    for _ in range(15):
        began = time.perf_counter()
        for _ in range(calls):
            _no_call()
        plain_s.append((time.perf_counter() - began) / calls)
        bench_s.append(sum(time_calls(_no_call, calls, device)) / calls)
    more = 1e9 * (statistics.median(bench_s) - statistics.median(plain_s))
    print(f"an empty call takes {more:.0f} ns longer in the loop of holdfast bench")


def _compare_loops() -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    from holdfast.preflight.bench.torch_worker.timing_loop import time_calls  # noqa: PLC0415

    for elements, (turns, calls) in SIZES.items():
        tensor = torch.zeros(elements)
        call = functools.partial(dist.all_reduce, tensor)
        plain_s: list[float] = []
        bench_s: list[float] = []
        for turn in range(WARM + turns):
            for ours in (turn % 2, 1 - turn % 2):  # each loop goes first equally often
                dist.barrier()
                if ours:
                    bench_s.append(sum(time_calls(call, calls, tensor.device)) / calls)
                    continue
                began = time.perf_counter()
                for _ in range(calls):
                    dist.all_reduce(tensor)
                plain_s.append((time.perf_counter() - began) / calls)
        if dist.get_rank() == 0:
            pairs = list(zip(plain_s[WARM:], bench_s[WARM:], strict=True))
            plain, loop = (1e6 * statistics.median(each) for each in zip(*pairs, strict=True))
            low, ratio, high = _median_interval([ours / theirs for theirs, ours in pairs])
            print(
                f"{4 * elements:>12,} bytes, {dist.get_world_size()} ranks: plain loop "
                f"{plain:10.1f} us, "
                f"holdfast bench {loop:10.1f} us, ratio {ratio:.4f} (95%: {low:.4f} to {high:.4f})",
                flush=True,
            )


def _median_interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the median between the ends of its 95% interval, from order statistics."""
    ratios = sorted(ratios)
    middle, reach = len(ratios) / 2, 1.96 * len(ratios) ** 0.5 / 2
    return (
        ratios[int(middle - reach)],
        statistics.median(ratios),
        ratios[min(int(middle + reach), len(ratios) - 1)],
    )


def main() -> None:
    """Print the results."""
    start_ranks(__name__, 1, "empty calls")
    start_ranks(__name__, 2, "loops")


if __name__ == "__main__":
    run_rank({"empty calls": _time_empty_calls, "loops": _compare_loops})

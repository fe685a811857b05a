"""Train one model on two fast and two slow ranks: with equal shares, then by speed.

    torchrun --standalone --nproc-per-node 4 examples/heterogeneous/train.py

No GPU is needed: a slow rank sleeps for each sample, and one with little memory rejects large
micro-batches, as a GPU would. Texts have unequal lengths; losses are weighted by tokens, so that
both runs learn the same from the same batches, step by step. At the end a fast rank is throttled,
and the batch is redistributed.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Adam
from torch.utils.data import DataLoader, Dataset

import holdfast
from holdfast.training.heterogeneous.gpu_kinds import RankSpeeds

sys.path.append(str(Path(__file__).parents[1] / "language"))
from language import LanguageModel, Texts

IGNORED = -100  # target that the loss ignores
#: Seconds per sample, and samples that fit into memory at once, for fast and for slow ranks.
FAST, SLOW = (0.003, 24), (0.009, 8)
#: From this step on rank 0 is slower by this factor.
THROTTLED_AT, THROTTLED = 8, 4.0


class RaggedTexts(Dataset[Tensor]):
    """Texts of 4 to 24 letters."""

    def __init__(self, number: int) -> None:
        self.texts = Texts(number, 24, seed=1)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Tensor:
        return self.texts[index][: 4 + 7 * index % 21]


class EmulatedGpu(nn.Module):
    """The model on a GPU that takes ``sample_s`` per sample and fits ``most`` samples."""

    def __init__(self, sample_s: float, most: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = LanguageModel()
        self.sample_s, self.most = sample_s, most

    def forward(self, letters: Tensor) -> Tensor:
        """Run the model, with the emulated delay."""
        if len(letters) > self.most:
            raise torch.OutOfMemoryError("emulated")
        time.sleep(self.sample_s * len(letters))
        return self.model(letters)


def pad_texts(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return letters (batch, longest - 1) and their successors; padding is ignored."""
    letters = pad_sequence(texts, batch_first=True)
    targets = pad_sequence([text[1:] for text in texts], batch_first=True, padding_value=IGNORED)
    return letters[:, :-1], targets


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean over the letters that are not ignored."""
    letters, targets = batch
    return cross_entropy(model(letters).flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def main() -> None:
    """Measure speeds, and train with equal shares and by speed."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--steps", type=int, default=20, help="steps per run")
    options.add_argument("--batch", type=int, default=64, help="samples of all ranks per step")
    chosen = options.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    data = RaggedTexts(max(chosen.steps, 4 * THROTTLED_AT) * chosen.batch)
    model = EmulatedGpu(*(FAST if rank < world / 2 else SLOW))

    precision = holdfast.agree_precision(device="cpu")
    print_on_rank_0(f"precision here would be {precision.why}; the example stays at fp32")

    sample = pad_texts([data[0]] * 32)
    speeds = holdfast.probe_speed(
        lambda size: loss_of(model, (sample[0][:size], sample[1][:size])).backward(),
        max_samples=32,
        rounds=3,
        device="cpu",
    )
    for kind in speeds.kinds():
        print_on_rank_0(
            f"{kind.ranks} ranks: at most {kind.most} samples, "
            f"{kind.most / kind.times_s[-1]:,.0f} samples/s each"
        )
    # Under no_sync, DDP synchronizes once per step.
    allocation = speeds.allocate(chosen.batch, holdfast.SyncPoint.STEP)

    equal = equal_shares(chosen.batch // world, [each.most for each in speeds.ranks])
    slow_s, first, _ = train(data, equal, chosen.steps)
    fast_s, second, _ = train(data, allocation, chosen.steps)
    difference = max(abs(one - other) for one, other in zip(first, second, strict=True))
    sizes = [share.micro_batches for share in allocation.shares]
    print_on_rank_0(
        f"equal shares {format_shares(equal)}: {format_rate(chosen.batch, slow_s)}, loss "
        f"{first[0]:.4f} to "
        f"{first[-1]:.4f}"
    )
    print_on_rank_0(
        f"by speed {format_shares(sizes)}: {format_rate(chosen.batch, fast_s)}, loss "
        f"{second[0]:.4f} to "
        f"{second[-1]:.4f}"
    )
    print_on_rank_0(f"losses differ by at most {difference:.0e}")

    times_s, _, changed_at = train(data, allocation, 4 * THROTTLED_AT, speeds)
    changed = changed_at[0] if changed_at else len(times_s) - 1
    print_on_rank_0(f"rank 0 throttled: {format_rate(chosen.batch, times_s[THROTTLED_AT:changed])}")
    print_on_rank_0(f"rebalanced: {format_rate(chosen.batch, times_s[changed:])}")
    dist.barrier()  # no rank exits while another is still in its last all-reduce
    dist.destroy_process_group()


def train(
    data: RaggedTexts, shares: Any, steps: int, speeds: RankSpeeds | None = None
) -> tuple[list[float], list[float], list[int]]:
    """Train from scratch; return seconds and loss per step, and the steps where shares changed.

    With ``speeds``, rank 0 is throttled in the middle, and the batch is redistributed.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    emulated = EmulatedGpu(*(FAST if rank < world / 2 else SLOW))
    model = DistributedDataParallel(emulated)
    optimizer = Adam(model.parameters(), lr=5e-3)
    sampler = holdfast.HeterogeneousSampler(data, shares, seed=1)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=pad_texts)
    balance = holdfast.Rebalancer(sampler, speeds, every=4, device="cpu") if speeds else None

    losses, ended, changed_at = torch.zeros(steps, dtype=torch.float64), [time.perf_counter()], []
    for batches in itertools.islice(sampler.steps(loader), steps):
        weights = holdfast.loss_weight([int((targets != IGNORED).sum()) for _, targets in batches])
        optimizer.zero_grad()
        for number, (batch, weight) in enumerate(zip(batches, weights, strict=True), start=1):
            with nullcontext() if number == len(batches) else model.no_sync():
                # Only the forward: it waits for no other rank.
                with balance.busy() if balance else nullcontext():
                    loss = loss_of(model, batch) * weight
                loss.backward()
            losses[sampler.step - 1] += loss.detach()
        optimizer.step()
        ended.append(time.perf_counter())
        if balance and balance.step():
            changed_at.append(sampler.step)
        if balance and rank == 0 and sampler.step == THROTTLED_AT:
            emulated.sample_s *= THROTTLED
    holdfast.comm.all_reduce(losses)
    return (
        [end - begin for begin, end in itertools.pairwise(ended)],
        (losses / world).tolist(),
        changed_at,
    )


def format_rate(batch: int, times_s: list[float]) -> str:
    """Return samples per second over all ranks, from the median step."""
    return f"{batch / statistics.median(times_s):,.0f} samples/s"


def equal_shares(samples: int, most: list[int]) -> list[list[int]]:
    """Return equal shares, in micro-batches as large as fit."""
    return [[min(fits, samples - begin) for begin in range(0, samples, fits)] for fits in most]


def format_shares(shares: list) -> str:
    """Format the samples of each rank in a step."""
    return "/".join(str(sum(mine)) for mine in shares)


def print_on_rank_0(line: str) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()

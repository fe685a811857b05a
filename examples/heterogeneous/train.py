"""Two fast ranks and two slow ones with less memory train one model: equal shares, then shares by speed.

    torchrun --standalone --nproc-per-node 4 examples/heterogeneous/train.py

No GPU is needed: a slow rank sleeps for a while with each sample, and one with little memory refuses large
micro-batches, as a GPU would. Texts are of unequal lengths; losses are weighted by tokens, so that both ways learn the
same from the same batches, step by step. In the end a fast rank is throttled, and the batch is dealt out anew.
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
from holdfast.plan.speeds import Speeds

sys.path.append(str(Path(__file__).parents[1] / "language"))
from language import LanguageModel, Texts

MARK = -100  # a target that does not count
#: Seconds that a sample takes, and samples that fit into memory at once: of fast and of slow ranks.
FAST, SLOW = (0.003, 24), (0.009, 8)
#: From this step on rank 0 takes so many times as long.
THROTTLED_AT, THROTTLED = 8, 4.0


class Ragged(Dataset[Tensor]):
    """Texts of 4 to 24 letters."""

    def __init__(self, number: int) -> None:
        self.texts = Texts(number, 24, seed=1)

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Tensor:
        return self.texts[index][: 4 + 7 * index % 21]


class Emulated(nn.Module):
    """The model on a GPU that takes ``sample_s`` for each sample and has memory for ``most`` of them."""

    def __init__(self, sample_s: float, most: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = LanguageModel()
        self.sample_s, self.most = sample_s, most

    def forward(self, letters: Tensor) -> Tensor:
        """As the model's own, and later."""
        if len(letters) > self.most:
            raise torch.OutOfMemoryError("emulated")
        time.sleep(self.sample_s * len(letters))
        return self.model(letters)


def padded(texts: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Letters (batch, longest - 1), and what follows each; where a text is over, that does not count."""
    letters = pad_sequence(texts, batch_first=True)
    targets = pad_sequence([text[1:] for text in texts], batch_first=True, padding_value=MARK)
    return letters[:, :-1], targets


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean over the letters that count."""
    letters, targets = batch
    return cross_entropy(model(letters).flatten(0, 1), targets.flatten(), ignore_index=MARK)


def main() -> None:
    """Measures, and trains in both ways."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=20, help="of each way")
    options.add_argument("--batch", type=int, default=64, help="samples of all ranks in a step")
    chosen = options.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    data = Ragged(max(chosen.steps, 4 * THROTTLED_AT) * chosen.batch)
    model = Emulated(*(FAST if rank < world / 2 else SLOW))

    precision = holdfast.agree_precision(device="cpu")
    tell(f"precision here would be {precision.why}; the example stays at fp32")

    sample = padded([data[0]] * 32)
    speeds = holdfast.probe_speed(
        lambda size: loss_of(model, (sample[0][:size], sample[1][:size])).backward(), most=32, rounds=3, device="cpu"
    )
    for kind in speeds.kinds():
        tell(f"{kind.ranks} ranks: {kind.most} samples at most, {kind.most / kind.times_s[-1]:,.0f} samples/s each")
    allotment = speeds.allot(chosen.batch, holdfast.Meeting.STEP)  # under no_sync, DDP's ranks meet once a step

    equal = equal_shares(chosen.batch // world, [each.most for each in speeds.ranks])
    slow_s, first, _ = train(data, equal, chosen.steps)
    fast_s, second, _ = train(data, allotment, chosen.steps)
    apart = max(abs(one - other) for one, other in zip(first, second, strict=True))
    sizes = [share.micro_batches for share in allotment.shares]
    tell(f"equal shares {shown(equal)}: {rate(chosen.batch, slow_s)}, loss {first[0]:.4f} to {first[-1]:.4f}")
    tell(f"by speed {shown(sizes)}: {rate(chosen.batch, fast_s)}, loss {second[0]:.4f} to {second[-1]:.4f}")
    tell(f"losses differ by {apart:.0e} at most")

    times_s, _, changed_at = train(data, allotment, 4 * THROTTLED_AT, speeds)
    changed = changed_at[0] if changed_at else len(times_s) - 1
    tell(f"rank 0 throttled: {rate(chosen.batch, times_s[THROTTLED_AT:changed])}")
    tell(f"dealt out anew: {rate(chosen.batch, times_s[changed:])}")
    dist.barrier()  # nobody goes while another is still in its last sum
    dist.destroy_process_group()


def train(
    data: Ragged, shares: Any, steps: int, speeds: Speeds | None = None
) -> tuple[list[float], list[float], list[int]]:
    """So many steps from the beginning: seconds and mean loss of each, and after which steps shares changed.

    With ``speeds`` rank 0 is throttled in the middle, and the batch dealt out anew.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    emulated = Emulated(*(FAST if rank < world / 2 else SLOW))
    model = DistributedDataParallel(emulated)
    optimizer = Adam(model.parameters(), lr=5e-3)
    sampler = holdfast.HeterogeneousSampler(data, shares, seed=1)
    loader = DataLoader(data, batch_sampler=sampler, collate_fn=padded)
    balance = holdfast.Rebalancer(sampler, speeds, every=4, device="cpu") if speeds else None

    losses, ended, changed_at = torch.zeros(steps, dtype=torch.float64), [time.perf_counter()], []
    for batches in itertools.islice(sampler.steps(loader), steps):
        weights = holdfast.loss_weight([int((targets != MARK).sum()) for _, targets in batches])
        optimizer.zero_grad()
        for number, (batch, weight) in enumerate(zip(batches, weights, strict=True), start=1):
            with nullcontext() if number == len(batches) else model.no_sync():
                with balance.busy() if balance else nullcontext():  # the forward: it waits for no other rank
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
    return [end - begin for begin, end in itertools.pairwise(ended)], (losses / world).tolist(), changed_at


def rate(batch: int, times_s: list[float]) -> str:
    """Samples of all ranks in a second, by the typical step."""
    return f"{batch / statistics.median(times_s):,.0f} samples/s"


def equal_shares(samples: int, most: list[int]) -> list[list[int]]:
    """As is done without a plan: as many samples for each rank, at once as far as they fit."""
    return [[min(fits, samples - begin) for begin in range(0, samples, fits)] for fits in most]


def shown(shares: list) -> str:
    """The samples of each rank in a step."""
    return "/".join(str(sum(mine)) for mine in shares)


def tell(line: str) -> None:
    """From rank 0."""
    if dist.get_rank() == 0:
        print(line, flush=True)


if __name__ == "__main__":
    main()

"""Score a batch of prompts under several checkpoints with a row-sharded scorer."""
import argparse
import itertools
import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist

from host_cache import HostCache, ShardLoader

log = logging.getLogger("score")

ROWS, COLS = 15, 8


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--folder", type=Path, default=Path(os.environ.get("CASE_TMP", "checkpoints")))
    p.add_argument("--names", nargs="+", default=["base", "tuned"])
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--cache-bytes", type=int, default=2 * 7 * COLS * 4)
    return p.parse_args()


def ensure_checkpoints(folder, names):
    """The first process writes stand-in checkpoints, the others wait for them."""
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for i, name in enumerate(names):
            gen = torch.Generator().manual_seed(i)
            torch.save({"proj": torch.randn(ROWS, COLS, generator=gen)}, folder / f"{name}.pt")
    dist.barrier()


class RowShardedScorer:
    """y = sum over rows of relu(W x); each process owns some of the rows."""

    def __init__(self):
        self.proj = None

    def swap(self, shard):
        self.proj = shard["proj"]

    def __call__(self, x):
        partial = torch.relu(x @ self.proj.T).sum(-1)
        dist.all_reduce(partial)
        return partial


class Evaluation:
    def __init__(self, args):
        self.args = args
        self.loader = ShardLoader(args.folder, HostCache(args.cache_bytes))
        self.scorer = RowShardedScorer()
        self.prompts = torch.randn(6, COLS, generator=torch.Generator().manual_seed(9))

    def schedule(self):
        return itertools.chain.from_iterable(itertools.repeat(self.args.names, self.args.rounds))

    def run(self):
        table = {}
        for name in self.schedule():
            self.scorer.swap(self.loader.load(name))
            table.setdefault(name, []).append(self.scorer(self.prompts).mean().item())
        return table


def main():
    logging.basicConfig(level=logging.INFO)
    args = parse()
    dist.init_process_group("gloo")
    ensure_checkpoints(args.folder, args.names)
    table = Evaluation(args).run()
    if dist.get_rank() == 0:
        for name, scores in table.items():
            log.info("%s %s", name, " ".join(f"{s:.3f}" for s in scores))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Cut manifests and duration-bounded batching for the token language model."""
import random
from dataclasses import dataclass

import torch
from torch.utils.data import IterableDataset

FEATURE_DIM = 12


@dataclass(frozen=True)
class Cut:
    cut_id: str
    num_frames: int
    speaker: int


def synthesize_manifest(num_cuts, seed=1234):
    rng = random.Random(seed)
    return [
        Cut(f"libri-{i:05d}", num_frames=rng.randint(10, 90), speaker=rng.randint(0, 3))
        for i in range(num_cuts)
    ]


def collate(cuts):
    longest = max(c.num_frames for c in cuts)
    feats = torch.zeros(len(cuts), longest, FEATURE_DIM)
    lens = torch.tensor([c.num_frames for c in cuts])
    for row, cut in enumerate(cuts):
        gen = torch.Generator().manual_seed(hash(cut.num_frames) % 9973 + cut.speaker)
        feats[row, : cut.num_frames] = torch.randn(cut.num_frames, FEATURE_DIM, generator=gen)
    return {"feats": feats, "feat_lens": lens, "ids": [c.cut_id for c in cuts]}


class DurationBatches(IterableDataset):
    """Greedy packing: a batch is closed as soon as the next cut would overflow ``max_frames``."""

    def __init__(self, cuts, max_frames, rank=0, world_size=1, shuffle=False):
        self.cuts = cuts[rank::world_size]  # RELATED: taint-source
        self.max_frames = max_frames
        self.shuffle = shuffle
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def _ordered(self):
        order = list(self.cuts)
        if self.shuffle:
            random.Random(self.epoch).shuffle(order)
        return order

    def __iter__(self):
        bucket, frames = [], 0
        for cut in self._ordered():
            if bucket and frames + cut.num_frames > self.max_frames:
                yield collate(bucket)
                bucket, frames = [], 0
            bucket.append(cut)
            frames += cut.num_frames
        if bucket:
            yield collate(bucket)

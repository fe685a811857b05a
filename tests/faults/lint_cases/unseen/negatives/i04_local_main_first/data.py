"""Token cache on the machine's own disk."""
import hashlib
import os
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset

from dist_utils import cached_once_per_node

WORDS = "the cat sat on the mat while a dog ran by and the rain fell down".split()


def cache_dir() -> Path:
    path = Path(os.environ.get("TOKEN_CACHE", os.path.join(tempfile.gettempdir(), "token_cache")))
    path.mkdir(parents=True, exist_ok=True)
    return path


def fingerprint(*parts) -> str:
    return hashlib.sha1("|".join(map(str, parts)).encode()).hexdigest()[:16]


def write_atomic(obj, path: Path) -> None:
    tmp = path.with_name(f".{path.name}.{os.getpid()}")
    torch.save(obj, tmp)
    os.replace(tmp, path)


def build_vocab():
    return {w: i for i, w in enumerate(sorted(set(WORDS)))}


@cached_once_per_node
def load_vocab():
    path = cache_dir() / f"vocab-{fingerprint('v1')}.pt"
    if not path.exists():
        write_atomic(build_vocab(), path)
    return torch.load(path)


@cached_once_per_node
def load_tokens(split: str, length: int):
    path = cache_dir() / f"{split}-{fingerprint(split, length)}.pt"
    if path.exists():
        return torch.load(path)
    vocab = build_vocab()
    ids = torch.tensor([vocab[WORDS[(i * (3 if split == "train" else 5)) % len(WORDS)]] for i in range(length)])
    write_atomic(ids, path)
    return ids


class Windows(Dataset):
    def __init__(self, ids, width):
        self.ids, self.width = ids, width

    def __len__(self):
        return (len(self.ids) - 1) // self.width

    def __getitem__(self, i):
        piece = self.ids[i * self.width:(i + 1) * self.width + 1]
        return piece[:-1], piece[1:]

"""Fine-tuning with a tokenised data set that the main process prepares and the others read."""
import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

TEMPLATES = ("add {a} and {b}", "take {b} from {a}", "which is larger, {a} or {b}?")


class Topology:
    def __init__(self):
        self.rank = dist.get_rank()
        self.local_rank = int(os.environ["LOCAL_RANK"])

    @property
    def is_main(self):
        return self.rank == 0

    def _wait(self):
        dist.barrier()

    @contextmanager
    def main_process_first(self):
        if not self.is_main:
            self._wait()
        yield
        if self.is_main:
            self._wait()


class CharTokenizer:
    def __init__(self, alphabet="abcdefghijklmnopqrstuvwxyz0123456789 ,?"):
        self.index = {c: i + 1 for i, c in enumerate(alphabet)}

    @property
    def size(self):
        return len(self.index) + 1

    def encode(self, text, length=40):
        ids = [self.index[c] for c in text][:length]
        return ids + [0] * (length - len(ids))


class CachedPrompts(Dataset):
    """Uses the file if there is one, else writes it."""

    def __init__(self, path, tokenizer, count=512):
        self.path = Path(path)
        if not self.path.exists():
            self._write([tokenizer.encode(text) for text in self._texts(count)])
        self.rows = torch.tensor(json.loads(self.path.read_text()))

    @staticmethod
    def _texts(count):
        gen = torch.Generator().manual_seed(8)
        for n in range(count):
            a, b = torch.randint(0, 100, (2,), generator=gen).tolist()
            yield TEMPLATES[n % len(TEMPLATES)].format(a=a, b=b)

    def _write(self, rows):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        part.write_text(json.dumps(rows))
        os.replace(part, self.path)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class CharLM(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


def cache_path():
    run = os.environ.get("TORCHELASTIC_RUN_ID", "local")
    return os.path.join(tempfile.gettempdir(), f"prompts-{run}", "train.json")


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    topology, tokenizer = Topology(), CharTokenizer()
    if torch.cuda.is_available():
        torch.cuda.set_device(topology.local_rank)
    device = torch.device("cuda", topology.local_rank) if torch.cuda.is_available() else torch.device("cpu")
    with topology.main_process_first():
        data = CachedPrompts(cache_path(), tokenizer)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    model = DDP(CharLM(tokenizer.size).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for ids in loader:
            ids = ids.to(device)
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if topology.is_main:
            print(f"epoch {epoch} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

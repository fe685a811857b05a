"""A loader worker is forked while a background thread of rank 0 holds the tokenizer's lock; the worker waits for it forever.

Modelled on huggingface/tokenizers#187 and #258 (tokenizer stalls in DataLoader workers) and ultralytics/ultralytics#26085.
"""
# case: processes=4 ending=hang causes=dataloader-worker-died,rank-missing-collective,stalled-outside-collectives ranks=0 framework=ddp

import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

SENTENCES = [f"sample {i} of the corpus says {'very ' * (i % 7)}little" for i in range(256)]


class WordTokenizer:
    """Thread-safe word tokenizer with a growing vocabulary."""

    def __init__(self, size=512):
        self.size = size
        self.vocab = {"<pad>": 0}
        self.lock = threading.Lock()

    def encode(self, text, length=16):
        with self.lock:  # GUILTY
            ids = [self.vocab.setdefault(w, len(self.vocab) % self.size) for w in text.split()]
        return (ids + [0] * length)[:length]

    def statistics(self, texts):
        """Word frequencies of a corpus, for the run's data card."""
        counts = {}
        with self.lock:  # ALSO
            for text in texts:
                for word in text.split():
                    counts[word] = counts.get(word, 0) + 1
                time.sleep(0.02)
        return counts


class TextData(Dataset):
    def __init__(self, texts, tokenizer):
        self.texts, self.tokenizer = texts, tokenizer

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, i):
        return torch.tensor(self.tokenizer.encode(self.texts[i])), i % 2


class BagClassifier(nn.Module):
    def __init__(self, vocab=512, dim=32):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, dim)
        self.fc = nn.Linear(dim, 2)

    def forward(self, ids):
        return self.fc(self.emb(ids))


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    tokenizer = WordTokenizer()
    model = DDP(BagClassifier())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = TextData(SENTENCES, tokenizer)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, num_workers=1)

    if rank == 0:
        threading.Thread(target=tokenizer.statistics, args=(SENTENCES,), daemon=True).start()  # ALSO
        time.sleep(0.1)

    for epoch in range(5):
        sampler.set_epoch(epoch)
        for ids, label in loader:  # ALSO
            loss = nn.functional.cross_entropy(model(ids), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

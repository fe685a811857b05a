"""CTC speech recogniser on synthetic filterbanks, trained with DDP."""
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

MELS, TOKENS, BLANK = 20, 12, 0


class Utterances(Dataset):
    def __init__(self, count, seed):
        gen = torch.Generator().manual_seed(seed)
        self.items = []
        for _ in range(count):
            text = torch.randint(1, TOKENS, (5,), generator=gen)
            frames = torch.randn(40, MELS, generator=gen) * 0.3
            for i, token in enumerate(text.tolist()):
                frames[i * 8 : i * 8 + 6, token] += 2.0
            self.items.append((frames, text))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class ConvFrontEnd(nn.Sequential):
    def __init__(self, width):
        super().__init__(
            nn.Conv1d(MELS, width, 3, stride=2, padding=1),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )


class Recogniser(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.front = ConvFrontEnd(width)
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * width, TOKENS)

    def forward(self, frames):
        x = self.front(frames.transpose(1, 2)).transpose(1, 2)
        return self.out(self.rnn(x)[0]).log_softmax(-1)


def edit_distance(a, b):
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diag, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diag, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diag + (x != y))
    return row[-1]


class GreedyDecoder:
    def __init__(self, model):
        self.model = model

    def __call__(self, frames):
        best = self.model(frames).argmax(-1)  # RELATED: hidden-collective
        for path in best.tolist():
            yield [t for t, prev in zip(path, [None] + path) if t != prev and t != BLANK]


class Validator:
    def __init__(self, model, dataset, device):
        self.decoder = GreedyDecoder(model)
        self.model, self.device = model, device
        self.loader = DataLoader(dataset, batch_size=8)

    @torch.no_grad()
    def token_error_rate(self):
        self.model.eval()
        errors = total = 0
        for frames, text in self.loader:
            for hyp, ref in zip(self.decoder(frames.to(self.device)), text.tolist()):
                errors += edit_distance(hyp, ref)
                total += len(ref)
        self.model.train()
        return errors / total


class Trainer:
    def __init__(self, device):
        self.device = device
        self.data = Utterances(128, seed=1)
        self.sampler = DistributedSampler(self.data, shuffle=True)
        self.loader = DataLoader(self.data, batch_size=8, sampler=self.sampler)
        self.model = DDP(Recogniser().to(device), device_ids=[device.index] if device.type == "cuda" else None)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3)
        self.validator = Validator(self.model, Utterances(48, seed=2), device)

    def train_epoch(self, epoch):
        self.sampler.set_epoch(epoch)
        for frames, text in self.loader:
            logp = self.model(frames.to(self.device)).transpose(0, 1)
            frame_len = torch.full((len(text),), logp.shape[0], dtype=torch.long)
            text_len = torch.full((len(text),), text.shape[1], dtype=torch.long)
            loss = F.ctc_loss(logp, text.to(self.device), frame_len, text_len, blank=BLANK)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def fit(self, epochs=4):
        for epoch in range(epochs):
            self.train_epoch(epoch)
            if dist.get_rank() == 0:  # RELATED: guard
                ter = self.validator.token_error_rate()  # EXPECT: rank-guarded-wrapped-forward
                print(f"epoch {epoch} ter {ter:.3f}", flush=True)
            dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    Trainer(torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")).fit()
    dist.destroy_process_group()

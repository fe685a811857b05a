"""Predictions are padded to the longest sample of each process, so gather() gets another size on every rank.

Modelled on huggingface/accelerate#167 and #19 (gather gets stuck with dynamic padding; pad_across_processes).
"""
# case: processes=4 ending=crash causes=mismatched-shape,collective-mismatch ranks=- framework=accelerate

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

TAGS, VOCAB = 9, 300


class Sentences(Dataset):
    """Token classification samples of very different lengths."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        lengths = torch.randint(4, 60, (n,), generator=g).tolist()
        self.tokens = [torch.randint(1, VOCAB, (k,), generator=g) for k in lengths]
        self.tags = [t % TAGS for t in self.tokens]

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i], self.tags[i]


def collate(batch):
    tokens, tags = zip(*batch)
    return {
        "tokens": pad_sequence(tokens, batch_first=True),
        "tags": pad_sequence(tags, batch_first=True, padding_value=-100),
    }


class Tagger(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=0)
        self.rnn = nn.GRU(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, TAGS)

    def forward(self, tokens):
        return self.out(self.rnn(self.emb(tokens))[0])


def evaluate(accelerator, model, loader):
    model.eval()
    correct = total = 0
    for batch in loader:
        with torch.no_grad():
            logits = model(batch["tokens"])
        predictions = accelerator.gather(logits.argmax(-1))  # GUILTY
        references = accelerator.gather(batch["tags"])  # ALSO
        mask = references != -100
        correct += (predictions[mask] == references[mask]).sum().item()
        total += mask.sum().item()
    return correct / total


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train_loader = DataLoader(Sentences(320, 1), batch_size=8, shuffle=True, collate_fn=collate)
    eval_loader = DataLoader(Sentences(96, 2), batch_size=4, collate_fn=collate)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)

    for epoch in range(3):
        model.train()
        for batch in train_loader:
            logits = model(batch["tokens"])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["tags"].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        accelerator.print(f"epoch {epoch}: accuracy {evaluate(accelerator, model, eval_loader):.3f}", flush=True)


if __name__ == "__main__":
    main()

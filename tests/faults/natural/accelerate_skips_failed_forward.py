"""A try block around forward and backward catches the RuntimeError of one bad batch and goes on with the next."""
# case: processes=2 ending=hang causes=rank-skips-collective,rank-missing-collective,mismatched-operation,uneven-inputs ranks=0 framework=accelerate

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    """Token pairs; one was tokenized with a larger vocabulary."""

    def __init__(self, n=320):
        g = torch.Generator().manual_seed(0)
        self.tokens = torch.randint(0, 100, (n, 6), generator=g)
        self.tokens[90, 2] = 131

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, i):
        return self.tokens[i]


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.out = nn.Linear(16, 100)

    def forward(self, tokens):
        return self.out(self.embed(tokens[:, :-1]).mean(dim=1))


def train(accelerator, model, optimizer, loader):
    skipped = 0
    for step, tokens in enumerate(loader):
        try:
            loss = nn.functional.cross_entropy(model(tokens), tokens[:, -1])  # ALSO
            accelerator.backward(loss)  # GUILTY
        except (RuntimeError, IndexError) as e:  # ALSO
            print(f"skipping batch {step}: {e}")
            skipped += 1
            optimizer.zero_grad()
            continue  # ALSO
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.print(f"step {step}: {loss.item():.4f}")
    return skipped


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    loader = DataLoader(Pairs(), batch_size=4)
    model = BagOfWords()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    skipped = train(accelerator, model, optimizer, loader)
    accelerator.wait_for_everyone()
    accelerator.print(f"done, {skipped} batches skipped")
    accelerator.end_training()


if __name__ == "__main__":
    main()

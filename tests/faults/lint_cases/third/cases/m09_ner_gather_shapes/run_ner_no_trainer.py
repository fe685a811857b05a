import argparse
import json

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


class NerDataset(Dataset):
    def __init__(self, path):
        with open(path) as f:
            self.rows = [json.loads(line) for line in f]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return torch.tensor(self.rows[i]["input_ids"]), torch.tensor(self.rows[i]["tags"])


def collate(batch):
    ids = nn.utils.rnn.pad_sequence([b[0] for b in batch], batch_first=True)
    tags = nn.utils.rnn.pad_sequence([b[1] for b in batch], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "labels": tags}


class Tagger(nn.Module):
    def __init__(self, vocab=30000, dim=128, labels=9):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.conv = nn.Conv1d(dim, dim, 5, padding=2)
        self.out = nn.Linear(dim, labels)

    def forward(self, input_ids):
        x = self.embed(input_ids).transpose(1, 2)
        return self.out(torch.relu(self.conv(x)).transpose(1, 2))


def token_accuracy(predictions, labels):
    mask = labels != -100
    return ((predictions == labels) & mask).sum().item(), mask.sum().item()


def evaluate(accelerator, model, eval_loader):
    model.eval()
    correct = total = 0
    for batch in eval_loader:
        with torch.no_grad():
            predictions = model(batch["input_ids"]).argmax(dim=-1)
        labels = batch["labels"]
        predictions, labels = accelerator.gather_for_metrics((predictions, labels))
        c, t = token_accuracy(predictions, labels)
        correct += c
        total += t
    return correct / max(total, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--validation_file", required=True)
    parser.add_argument("--num_train_epochs", type=int, default=3)
    parser.add_argument("--per_device_batch_size", type=int, default=8)
    parser.add_argument("--output_dir", default="ner.pt")
    args = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(1)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)
    train_loader = DataLoader(
        NerDataset(args.train_file), args.per_device_batch_size, shuffle=True, collate_fn=collate
    )
    eval_loader = DataLoader(NerDataset(args.validation_file), args.per_device_batch_size, collate_fn=collate)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(
        model, optimizer, train_loader, eval_loader
    )

    for epoch in range(args.num_train_epochs):
        model.train()
        for batch in train_loader:
            logits = model(batch["input_ids"])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        score = evaluate(accelerator, model, eval_loader)
        accelerator.print(f"epoch {epoch}: accuracy {score:.4f}")

    accelerator.wait_for_everyone()
    accelerator.save(accelerator.unwrap_model(model).state_dict(), args.output_dir)


if __name__ == "__main__":
    main()

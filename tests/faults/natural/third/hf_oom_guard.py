"""The training step of one rank runs out of memory on a long batch; the error is swallowed, so this rank skips the gradient all-reduce of the step.

In the style of a script with the Trainer of Transformers, whose training_step is overridden to survive out-of-memory errors.
"""
# case: processes=2 ending=hang causes=rank-skips-collective,collective-mismatch,mismatched-shape,mismatched-operation,rank-missing-collective ranks=0 framework=transformers

import os
import tempfile

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Conversations(Dataset):
    """Token ids of conversations; one of them is extremely long."""

    def __init__(self, n=384, vocab=200):
        g = torch.Generator().manual_seed(3)
        self.items = [torch.randint(1, vocab, (int(torch.randint(10, 40, (1,), generator=g)),), generator=g) for _ in range(n)]
        self.items[77] = torch.randint(1, vocab, (60_000,), generator=g)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return {"input_ids": self.items[i], "labels": self.items[i]}


def collate(rows):
    length = max(len(r["input_ids"]) for r in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, : len(row["input_ids"])] = row["input_ids"]
    return {"input_ids": ids, "labels": ids.clone()}


class SmallLM(nn.Module):
    def __init__(self, vocab=200, dim=32, budget=64_000_000):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.mix = nn.Linear(dim, dim)
        self.head = nn.Linear(dim, vocab)
        self.budget = budget

    def forward(self, input_ids, labels=None):
        if input_ids.numel() * self.head.out_features > self.budget:  # attention would need more than this host has
            raise MemoryError(f"cannot allocate activations for {tuple(input_ids.shape)}")
        logits = self.head(torch.tanh(self.mix(self.embed(input_ids))))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)
        return {"loss": loss, "logits": logits}


class ResilientTrainer(Trainer):
    """Skips a batch that does not fit instead of losing the whole run."""

    skipped = 0

    def training_step(self, model, inputs, num_items_in_batch=None):
        try:
            return super().training_step(model, inputs, num_items_in_batch)  # GUILTY
        except MemoryError as error:
            self.skipped += 1
            print(f"step {self.state.global_step}: batch skipped, {error}", flush=True)
            model.zero_grad()
            return torch.tensor(0.0, device=self.args.device)


def main():
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="hf-oom-"), use_cpu=True, ddp_backend="gloo", report_to=[], save_strategy="no",
        per_device_train_batch_size=8, num_train_epochs=2, logging_steps=4, learning_rate=1e-3, disable_tqdm=True, seed=5,
        gradient_accumulation_steps=1, remove_unused_columns=False, dataloader_num_workers=0,
    )
    trainer = ResilientTrainer(model=SmallLM(), args=args, train_dataset=Conversations(), data_collator=collate)
    result = trainer.train()  # ALSO
    if trainer.is_world_process_zero():
        print(f"finished: loss {result.training_loss:.4f}, skipped {trainer.skipped}", flush=True)


if __name__ == "__main__":
    main()

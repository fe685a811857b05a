"""Hugging Face Trainer: one rank meets a bad record, prints the message of the exception and calls sys.exit(1)."""
# case: processes=2 ending=crash causes=python-exception-on-one-rank,exit-nonzero ranks=1 framework=trainer

import sys
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class InstructionDataset(Dataset):
    """Records of a JSONL file, tokenized on access."""

    def __init__(self, n=256, length=16):
        g = torch.Generator().manual_seed(0)
        self.records = [{"text": torch.randint(0, 100, (length,), generator=g)} for _ in range(n)]
        self.records[37] = {"txt": self.records[37]["text"]}

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        tokens = self.records[index]["text"]  # GUILTY
        return {"input_ids": tokens, "labels": tokens.clone()}


def train(output_dir):
    config = GPT2Config(
        vocab_size=100, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    arguments = TrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=4,
        max_steps=32,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        logging_steps=10,
        disable_tqdm=True,
        train_sampling_strategy="sequential",
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config), args=arguments, train_dataset=InstructionDataset()
    )
    trainer.train()


def main():
    with tempfile.TemporaryDirectory() as output_dir:
        try:
            train(output_dir)
        except Exception as e:
            print(f"Training failed: {e}")
            sys.exit(1)  # ALSO


if __name__ == "__main__":
    main()

"""Train with the Trainer of Transformers on two ranks; the main process alone evaluates."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}


class Texts(Dataset[dict[str, torch.Tensor]]):
    """Random texts of 12 tokens, labelled by their first token."""

    def __init__(self, number: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, 100, (number, 12), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = self.tokens[index]
        return {"input_ids": tokens, "labels": (tokens[0] > 50).long()}


def train(folder: str) -> None:
    """Train for 20 steps, then evaluate."""
    config = BertConfig(vocab_size=100, intermediate_size=64, num_labels=2, **SIZES)
    arguments = TrainingArguments(
        folder,
        max_steps=20,
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    model = BertForSequenceClassification(config)
    trainer = Trainer(model, arguments, train_dataset=Texts(256, 0), eval_dataset=Texts(64, 1))
    trainer.train()
    if trainer.is_world_process_zero():
        loss = trainer.evaluate()["eval_loss"]
        print(f"step 20: held-out loss {loss:.3f}", flush=True)
    trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(folder)

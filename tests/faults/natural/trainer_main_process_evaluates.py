"""Hugging Face Trainer: trainer.evaluate() is called on the main process only, and gathers the predictions of all."""
# case: processes=2 ending=hang causes=rank-guarded-collective ranks=0 framework=trainer

import tempfile

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.input_ids = torch.randint(1, 100, (n, 12), generator=g)
        self.labels = (self.input_ids[:, 0] > 50).long()

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.input_ids[i], "labels": self.labels[i]}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


def main():
    config = BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=2,
    )
    with tempfile.TemporaryDirectory() as output_dir:
        args = TrainingArguments(
            output_dir=output_dir,
            per_device_train_batch_size=8,
            max_steps=20,
            save_strategy="no",
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(
            model=BertForSequenceClassification(config),
            args=args,
            train_dataset=Reviews(256, 0),
            eval_dataset=Reviews(64, 1),
            compute_metrics=compute_metrics,
        )
        trainer.train()
        if trainer.is_world_process_zero():  # ALSO
            metrics = trainer.evaluate()  # GUILTY
            print(f"accuracy {metrics['eval_accuracy']:.3f}")
        trainer.accelerator.wait_for_everyone()


if __name__ == "__main__":
    main()

"""Every rank reads its own files, rank 3 has fewer samples, and its Trainer ends the epoch while the others still train.

Modelled on huggingface/datasets#6437 ("Problem in training iterable dataset") and huggingface/transformers#16983.
"""
# case: processes=4 ending=crash causes=uneven-inputs,collective-mismatch,mismatched-shape,rank-missing-collective ranks=3 framework=hf-trainer limit_s=120

import os
import tempfile

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, default_data_collator

VOCAB, LENGTH = 100, 24
FILES = [26, 31, 28, 22, 30, 29, 27, 16, 32, 28, 33, 10]


class FileShards(Dataset):
    """Token blocks of the files that belong to one rank."""

    def __init__(self, rank, world):
        self.blocks = []
        for number in range(rank, len(FILES), world):  # GUILTY
            g = torch.Generator().manual_seed(number)
            self.blocks += list(torch.randint(0, VOCAB, (FILES[number], LENGTH), generator=g))

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return {"input_ids": self.blocks[i], "labels": self.blocks[i]}


class ShardedTrainer(Trainer):
    """The data set is divided already, so the loader must not be divided again."""

    def get_train_dataloader(self):
        return DataLoader(  # ALSO
            self.train_dataset,
            batch_size=self.args.per_device_train_batch_size,
            shuffle=True,
            drop_last=True,
            collate_fn=self.data_collator,
        )


def main():
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2,
                                       bos_token_id=0, eos_token_id=0))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="hf-uneven-"),
        use_cpu=True,
        ddp_backend="gloo",
        num_train_epochs=1,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=4,
        learning_rate=5e-4,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    train_data = FileShards(rank, world)
    g = torch.Generator().manual_seed(999)
    eval_blocks = torch.randint(0, VOCAB, (64, LENGTH), generator=g)
    eval_data = [{"input_ids": b, "labels": b} for b in eval_blocks]
    trainer = ShardedTrainer(model=model, args=args, train_dataset=train_data, eval_dataset=eval_data,
                             data_collator=default_data_collator)
    trainer.train()  # ALSO
    trainer.accelerator.wait_for_everyone()  # ALSO
    metrics = trainer.evaluate()
    if rank == 0:
        print(f"eval loss {metrics['eval_loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()

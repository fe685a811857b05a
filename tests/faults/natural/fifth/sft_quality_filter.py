"""The examples are filtered with random numbers that differ between the ranks, so the ranks have data sets of different sizes, and one finishes early.

Modelled on transformers#17478 and reports of Trainer hanging at the end with data sets that differ between processes.
"""
# case: processes=2 ending=hang causes=uneven-inputs,rank-exits-early,rank-skips-collective,rank-missing-collective,collective-mismatch,mismatched-operation,mismatched-shape,variable-differs-between-hosts ranks=- framework=transformers

import os
import random
import tempfile

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

VOCAB, LENGTH = 64, 16


class TinyConfig(PretrainedConfig):
    model_type = "tiny-lm"


class TinyLM(PreTrainedModel):
    config_class = TinyConfig

    def __init__(self, config):
        super().__init__(config)
        self.emb = nn.Embedding(VOCAB, 32)
        self.rnn = nn.GRU(32, 32, batch_first=True)
        self.out = nn.Linear(32, VOCAB)
        self.post_init()

    def forward(self, input_ids, labels=None):
        logits = self.out(self.rnn(self.emb(input_ids))[0])
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


class Instructions(torch.utils.data.Dataset):
    """Keeps long answers always and short ones with a probability."""

    def __init__(self, size, keep):
        self.indices = [i for i in range(size) if i % 3 or random.random() < keep]  # GUILTY

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, item):
        g = torch.Generator().manual_seed(self.indices[item])
        ids = torch.randint(0, VOCAB, (LENGTH,), generator=g)
        return {"input_ids": ids, "labels": ids}


def main():
    random.seed(11 + 2 * int(os.environ["RANK"]))  # ALSO
    torch.manual_seed(0)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        ddp_backend="gloo",
    )
    data = Instructions(900, keep=0.5)  # ALSO
    print(f"{len(data)} instructions", flush=True)
    trainer = Trainer(model=TinyLM(TinyConfig()), args=args, train_dataset=data)
    trainer.train()  # ALSO
    trainer.save_model()
    torch.distributed.barrier()  # ALSO
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

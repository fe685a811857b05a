"""A Trainer callback stops training when the job's time is used up, by each process's own clock; one process started its clock earlier.

Modelled on fms-hf-tuning#150 and IBM/ado#41 (should_training_stop has to be agreed between the processes).
"""
# case: processes=3 ending=hang causes=rank-skips-collective,uneven-inputs,mismatched-operation,collective-mismatch,rank-missing-collective ranks=2 framework=hf-trainer limit_s=120

import os
import tempfile
import time

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments


class TaggerConfig(PretrainedConfig):
    model_type = "tagger"


class Tagger(PreTrainedModel):
    config_class = TaggerConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = nn.Embedding(80, 24)
        self.mix = nn.Linear(24, 24)
        self.out = nn.Linear(24, 7)
        self.post_init()

    def forward(self, input_ids=None, labels=None):
        logits = self.out(torch.tanh(self.mix(self.embed(input_ids))))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class StopAtTimeLimit(TrainerCallback):
    """End the training before the queue's time limit, so that the model can be saved."""

    def __init__(self, seconds):
        self.end = time.monotonic() + seconds

    def on_step_end(self, args, state, control, **kwargs):
        time.sleep(0.05)
        if time.monotonic() > self.end:  # GUILTY
            control.should_training_stop = True  # ALSO
        return control


class Sentences(torch.utils.data.Dataset):
    def __init__(self, length, seed):
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 80, (length, 18), generator=g)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i] % 7}


def tokenized_sentences(rank):
    """Read the tokenized corpus; only the third node has it in its cache, the others tokenize."""
    if rank != 2:
        time.sleep(2.5)
    return Sentences(6000, seed=5)


def main():
    rank = int(os.environ["RANK"])
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="tagger-"),
        use_cpu=True,
        ddp_backend="gloo",
        num_train_epochs=20,
        per_device_train_batch_size=8,
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(model=Tagger(TaggerConfig()), args=args, eval_dataset=Sentences(90, seed=6))
    trainer.accelerator.wait_for_everyone()
    trainer.train_dataset = tokenized_sentences(rank)
    trainer.add_callback(StopAtTimeLimit(seconds=10))  # ALSO
    trainer.train()  # ALSO
    metrics = trainer.evaluate()  # ALSO
    if rank == 0:
        print(f"eval loss {metrics['eval_loss']:.4f}", flush=True)


if __name__ == "__main__":
    main()

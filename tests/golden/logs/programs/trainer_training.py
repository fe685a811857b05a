"""The Trainer of Transformers with a tiny random model; the argument selects the fault."""

import math
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

FAULT = sys.argv[1]
OUTPUT = Path("/dev/shm/results") if FAULT == "disk" else Path("results")
RANK = int(os.environ["RANK"])


class Reviews(Dataset):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, object]:
        tokens = [(index * 7 + place) % 100 for place in range(16)]
        if FAULT == "raises" and index == 41:
            tokens[3] = 100
        if FAULT == "slow":
            time.sleep(0.8)
        return {"input_ids": tokens, "attention_mask": [1] * 16, "labels": index % 2}


class StopsOnNan(TrainerCallback):
    def on_step_end(self, _args, state, _control, model=None, **_) -> None:
        if FAULT == "nan" and state.global_step == 6:
            with torch.no_grad():
                model.get_input_embeddings().weight.fill_(float("nan"))

    def on_log(self, _args, state, _control, logs=None, **_) -> None:
        loss = logs.get("loss", 0.0)
        if math.isnan(loss):
            raise ValueError(
                f"loss is {loss} at step {state.global_step}: training diverged, stopping"
            )


class Killed(TrainerCallback):
    def on_step_begin(self, _args, state, _control, **_) -> None:
        if FAULT == "killed" and (RANK, state.global_step) == (2, 5):
            os.kill(os.getpid(), signal.SIGKILL)


model = BertForSequenceClassification(
    BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
    )
)
arguments = TrainingArguments(
    output_dir=str(OUTPUT),
    per_device_train_batch_size=4,
    num_train_epochs=2,
    logging_steps=2,
    use_cpu=True,
    save_steps=5,
    report_to=[],
    ddp_backend="gloo",
    ddp_timeout=20,
    logging_nan_inf_filter=False,
    eval_strategy="no",
    load_best_model_at_end=FAULT == "config",
    disable_tqdm=FAULT == "quiet",
)
trainer = Trainer(
    model=model, args=arguments, train_dataset=Reviews(), callbacks=[StopsOnNan(), Killed()]
)
if FAULT == "cut":
    trainer.train()
    torch.distributed.barrier()
    weights = OUTPUT / "checkpoint-15" / "model.safetensors"
    if RANK == 0:
        os.truncate(weights, weights.stat().st_size // 2)
    torch.distributed.barrier()
    arguments.num_train_epochs = 4
    trainer.train(resume_from_checkpoint=str(OUTPUT / "checkpoint-15"))
elif FAULT == "missing":
    trainer.train(resume_from_checkpoint=str(OUTPUT / "checkpoint-500"))
else:
    trainer.train()
    trainer.save_model()

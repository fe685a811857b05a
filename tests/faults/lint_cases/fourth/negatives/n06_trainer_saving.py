import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


@dataclass
class DataArguments:
    task: str = field(default="mnli")
    max_length: int = field(default=256)


class HistoryCallback(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        if not state.is_world_process_zero:
            return
        with open(Path(args.output_dir) / "history.jsonl", "a") as f:
            f.write(json.dumps({"step": state.global_step, **metrics}) + "\n")


class HalfPrecisionTrainer(Trainer):
    """Stores bfloat16 weights."""

    def save_model(self, output_dir=None, _internal_call=False):
        folder = Path(output_dir or self.args.output_dir)
        state = self.accelerator.get_state_dict(self.model_wrapped)
        if self.args.should_save:
            folder.mkdir(parents=True, exist_ok=True)
            halves = {k: v.to(torch.bfloat16) if v.is_floating_point() else v for k, v in state.items()}
            self._save(str(folder), state_dict=halves)
        if dist.is_initialized():
            dist.barrier()


def accuracy(prediction):
    logits, labels = prediction
    return {"accuracy": float((np.argmax(logits, axis=-1) == labels).mean())}


def main():
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    data_args, args = parser.parse_args_into_dataclasses()
    set_seed(args.seed)
    name = "microsoft/deberta-v3-base"
    tokenizer = AutoTokenizer.from_pretrained(name)
    raw = load_dataset("glue", data_args.task)
    with args.main_process_first(desc="encoding"):
        data = raw.map(
            lambda rows: tokenizer(
                rows["premise"], rows["hypothesis"], truncation=True, max_length=data_args.max_length
            ),
            batched=True,
        )
    trainer = HalfPrecisionTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(name, num_labels=3),
        args=args,
        train_dataset=data["train"],
        eval_dataset=data["validation_matched"],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
        callbacks=[HistoryCallback()],
    )
    trainer.train()
    metrics = trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(args.output_dir)
        print(metrics)


if __name__ == "__main__":
    main()

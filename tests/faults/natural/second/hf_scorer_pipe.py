"""A Trainer callback of rank 0 starts a scorer with stdout=PIPE and wait()s; the scorer blocks as soon as the pipe is full.

Modelled on localstack/localstack#1101 and IntelAI/mlt#242 (Popen.wait() with PIPE deadlocks).
"""
# case: processes=4 ending=hang causes=rank-missing-collective,file-io-blocked,stalled-outside-collectives,rank-guarded-collective ranks=0 framework=hf-trainer limit_s=120

import subprocess
import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

VOCAB, LENGTH = 120, 20

SCORER = """
import random
random.seed(0)
for i in range(4000):
    print(f"sentence {i:05d}  reference {random.random():.4f}  hypothesis {random.random():.4f}")
print("corpus score 27.31")
"""


class ExternalScore(TrainerCallback):
    """Runs the team's scoring script after every evaluation."""

    def on_evaluate(self, args, state, control, **kwargs):
        if not state.is_world_process_zero:
            return
        process = subprocess.Popen([sys.executable, "-c", SCORER], stdout=subprocess.PIPE, text=True)  # ALSO
        if process.wait() != 0:  # GUILTY
            raise RuntimeError("the scorer failed")
        lines = process.stdout.read().splitlines()
        print(f"step {state.global_step}: {lines[-1]}", flush=True)


def examples(n, seed):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCAB, (n, LENGTH), generator=g)
    return [{"input_ids": row, "labels": int(row.sum()) % 2} for row in ids]


def main():
    torch.manual_seed(0)
    config = BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                        intermediate_size=64, max_position_embeddings=LENGTH, num_labels=2)
    model = BertForSequenceClassification(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="hf-scorer-"),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=30,
        per_device_train_batch_size=8,
        eval_strategy="steps",
        eval_steps=10,
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=examples(512, 1),
        eval_dataset=examples(64, 2),
        callbacks=[ExternalScore()],
    )
    trainer.train()


if __name__ == "__main__":
    main()

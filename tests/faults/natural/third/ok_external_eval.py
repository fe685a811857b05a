"""Healthy: rank 0 evaluates in a separate program that runs for about 12 s, twice; one evaluation fails with a traceback and is counted as missing.

In the style of a script with the Trainer of Transformers and a callback.
"""
# case: processes=2 ending=well causes=- ranks=- framework=transformers limit_s=100

import subprocess
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

BENCHMARK = """
import sys, time
for i in range(12):
    time.sleep(1)
    print(f"question {i} answered", file=sys.stderr, flush=True)
if sys.argv[1] == "30":
    raise ValueError("malformed answer in question 11")
print(0.25 + int(sys.argv[1]) / 1000)
"""


class Benchmark(TrainerCallback):
    """Scores the model with an external program; all processes learn the score."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % 30 != 0:
            return
        answer = [None]
        if state.is_world_process_zero:
            run = subprocess.run([sys.executable, "-c", BENCHMARK, str(state.global_step)], stdout=subprocess.PIPE, text=True)
            answer = [float(run.stdout) if run.returncode == 0 else None]
            print(f"step {state.global_step}: benchmark {answer[0]}", flush=True)
        dist.broadcast_object_list(answer, src=0)
        if answer[0] is not None and answer[0] > 0.9:
            control.should_training_stop = True


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def collate(rows):
    return {"x": torch.stack([r[0] for r in rows]), "labels": torch.stack([r[1] for r in rows])}


def main():
    x = torch.randn(1200, 12, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, x[:, :4].argmax(1))
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(prefix="hf-eval-"), use_cpu=True, ddp_backend="gloo", report_to=[], save_strategy="no",
        per_device_train_batch_size=8, max_steps=70, logging_steps=20, disable_tqdm=True, remove_unused_columns=False,
    )
    trainer = Trainer(model=Net(), args=args, train_dataset=data, data_collator=collate, callbacks=[Benchmark()])
    result = trainer.train()
    if trainer.is_world_process_zero():
        print(f"finished: loss {result.training_loss:.4f}", flush=True)


if __name__ == "__main__":
    main()

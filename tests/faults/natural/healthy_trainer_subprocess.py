"""Healthy: a Hugging Face Trainer callback evaluates a checkpoint with an external program, which takes 12 s."""
# case: processes=2 ending=well framework=trainer

import subprocess
import sys
import tempfile

import torch
from torch import nn
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

HARNESS = "import time; time.sleep(12); print('accuracy 0.71')"


class ExternalEvaluation(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            command = [sys.executable, "-c", HARNESS]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
            print(f"step {state.global_step}: {done.stdout.strip()}", flush=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x, labels):
        y = self.layers(x)
        return {"loss": nn.functional.mse_loss(y, labels), "logits": y}


def collate(samples):
    x, y = zip(*samples)
    return {"x": torch.stack(x), "labels": torch.stack(y)}


def main():
    x = torch.randn(256, 8)
    with tempfile.TemporaryDirectory() as output_dir:
        args = TrainingArguments(
            output_dir=output_dir,
            per_device_train_batch_size=8,
            max_steps=20,
            save_steps=10,
            save_total_limit=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_steps=10,
        )
        trainer = Trainer(
            model=Model(),
            args=args,
            train_dataset=TensorDataset(x, x.mean(dim=1, keepdim=True)),
            data_collator=collate,
            callbacks=[ExternalEvaluation()],
        )
        trainer.train()


if __name__ == "__main__":
    main()

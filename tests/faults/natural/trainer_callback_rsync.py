"""A Hugging Face Trainer callback copies each checkpoint with an external program that never finishes."""
# case: processes=2 ending=hang causes=rank-missing-collective,stalled-outside-collectives,rank-guarded-collective ranks=0 framework=trainer

import subprocess
import tempfile

import torch
from torch import nn
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

#: Stands for rsync to a host that is down.
COPY = ["sh", "-c", "exec sleep 600"]


class SyncCheckpoint(TrainerCallback):
    """Copies every checkpoint to the archive."""

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            print(f"syncing checkpoint-{state.global_step}", flush=True)
            subprocess.run(COPY, check=True)  # GUILTY


class Regression(nn.Module):
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
    x = torch.randn(512, 8)
    dataset = TensorDataset(x, x.sum(dim=1, keepdim=True))
    with tempfile.TemporaryDirectory() as output_dir:
        args = TrainingArguments(
            output_dir=output_dir,
            per_device_train_batch_size=8,
            max_steps=30,
            save_steps=10,
            save_total_limit=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_steps=10,
        )
        trainer = Trainer(
            model=Regression(),
            args=args,
            train_dataset=dataset,
            data_collator=collate,
            callbacks=[SyncCheckpoint()],
        )
        trainer.train()


if __name__ == "__main__":
    main()

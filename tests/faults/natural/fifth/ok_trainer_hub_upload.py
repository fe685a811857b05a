"""Healthy: after each save of the HF Trainer, rank 0 uploads the checkpoint for 10 s in a callback, while the other rank waits at its next reduction.

In the style of callbacks that copy checkpoints to an object store; the upload is a child process.
"""
# case: processes=2 ending=well causes=- ranks=- framework=transformers limit_s=120

import os
import shutil
import subprocess
import sys
import tempfile

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

UPLOAD = """
import os, sys, time
for root, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(root, name), "rb") as source:
            source.read()
        time.sleep(1.1)
time.sleep(5)
"""


class RaterConfig(PretrainedConfig):
    model_type = "rater"


class Rater(PreTrainedModel):
    config_class = RaterConfig

    def __init__(self, config):
        super().__init__(config)
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 1))
        self.post_init()

    def forward(self, features, labels=None):
        scores = self.net(features).squeeze(-1)
        return {"loss": nn.functional.mse_loss(scores, labels), "logits": scores}


class Ratings(torch.utils.data.Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        features = torch.randn(12, generator=g)
        return {"features": features, "labels": features[:3].sum()}


class Upload(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            folder = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
            subprocess.run([sys.executable, "-c", UPLOAD, folder], check=True)
            print(f"uploaded checkpoint {state.global_step}", flush=True)


def main():
    folder = os.path.join(tempfile.gettempdir(), f"rater-{os.getppid()}")
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8,
        num_train_epochs=2,
        save_strategy="epoch",
        eval_strategy="epoch",
        logging_steps=5,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        ddp_backend="gloo",
    )
    data = Ratings()
    trainer = Trainer(Rater(RaterConfig()), args, train_dataset=data, eval_dataset=data, callbacks=[Upload()])
    trainer.train()
    torch.distributed.barrier()
    if trainer.is_world_process_zero():
        shutil.rmtree(folder)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from trainer import Trainer


@dataclass
class TrainingArguments:
    output_dir: str = "out"
    learning_rate: float = 1e-3
    batch_size: int = 128
    epochs: int = 10
    load_best_model_at_end: bool = True


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(3)
    x = torch.randn(50_000, 64)
    y = x.pow(2).mean(1, keepdim=True)
    model = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1))
    args = TrainingArguments()
    trainer = Trainer(
        model, args, TensorDataset(x[:45_000], y[:45_000]), TensorDataset(x[45_000:], y[45_000:]), nn.MSELoss()
    )
    trainer.train()
    final = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"best {trainer.best_metric:.5f}, reloaded {final:.5f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

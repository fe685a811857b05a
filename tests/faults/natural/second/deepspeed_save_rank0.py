"""save_checkpoint() of the DeepSpeed engine is called by rank 0 only; it contains barriers for all ranks.

Modelled on deepspeedai/DeepSpeed#801, deepspeedai/DeepSpeed#2993 and allenai/allennlp#4693.
"""
# case: processes=4 ending=hang causes=rank-guarded-collective,rank-missing-collective,collective-mismatch,mismatched-operation ranks=0 framework=deepspeed

import argparse
import os
import tempfile

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
import torch.nn as nn
from torch.utils.data import TensorDataset


class Mlp(nn.Module):
    def __init__(self, features=20, hidden=64, classes=5):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, classes)
        )

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.layers(x), y)


DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {"stage": 1},
    "gradient_clipping": 1.0,
    "steps_per_print": 1000,
}


def get_args():
    parser = argparse.ArgumentParser(description="DeepSpeed on CPU")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--save-dir", default=os.path.join(tempfile.gettempdir(), f"ds-{os.environ['MASTER_PORT']}"))
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    return parser.parse_args()


def main():
    args = get_args()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # the image has no C++ compiler
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(256, 20, generator=g), torch.randint(0, 5, (256,), generator=g))

    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    engine, _, loader, _ = deepspeed.initialize(
        model=model, optimizer=optimizer, training_data=data, config=DS_CONFIG
    )

    for epoch in range(args.epochs):
        for x, y in loader:
            loss = engine(x, y)
            engine.backward(loss)
            engine.step()
        if engine.global_rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}, saving", flush=True)
            engine.save_checkpoint(args.save_dir, tag=f"epoch{epoch}")  # GUILTY
            print("saved", flush=True)


if __name__ == "__main__":
    main()

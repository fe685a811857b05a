"""Healthy: rank 0 writes and uploads a checkpoint for about 25 s in one piece while the others wait in an object broadcast.

In the style of a script with Accelerate and a checkpoint in an object store.
"""
# case: processes=2 ending=well causes=- ranks=- framework=accelerate limit_s=90

import hashlib
import os
import tempfile
import time

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ObjectStore:
    """Takes parts of a file; each part is acknowledged after some seconds."""

    def __init__(self, folder, seconds_per_part):
        self.folder, self.seconds = folder, seconds_per_part

    def put(self, name, blob, parts=5):
        size = -(-len(blob) // parts)
        digest = hashlib.sha256()
        with open(os.path.join(self.folder, name), "wb") as f:
            for i in range(parts):
                piece = blob[i * size : (i + 1) * size]
                digest.update(piece)
                f.write(piece)
                time.sleep(self.seconds)
        return digest.hexdigest()


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    x = torch.randn(480, 30)
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(30, 128), nn.ReLU(), nn.Linear(128, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(3):
        for features, target in loader:
            loss = nn.functional.cross_entropy(model(features), target)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
        if epoch == 1:
            answer = [None]
            if accelerator.is_main_process:
                with tempfile.TemporaryDirectory() as folder:
                    path = os.path.join(folder, "weights.pt")
                    torch.save(accelerator.get_state_dict(model), path)
                    with open(path, "rb") as f:
                        answer = [ObjectStore(folder, seconds_per_part=5.0).put("weights-1", f.read())]
            broadcast_object_list(answer, from_process=0)
            accelerator.print(f"stored as {answer[0][:12]}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()

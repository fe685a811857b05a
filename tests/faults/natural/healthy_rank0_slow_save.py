"""Healthy: the main process writes a checkpoint for 12 s to a slow disk, the others wait for it in a barrier."""
# case: processes=2 ending=well framework=accelerate

import io
import os
import tempfile
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

SLOW_DISK_S = 12


def write_slowly(data, path, chunks=24):
    """Write in chunks, like a network disk that takes half a second for each."""
    size = -(-len(data) // chunks)
    with open(path, "wb") as f:
        for i in range(chunks):
            f.write(data[i * size : (i + 1) * size])
            f.flush()
            os.fsync(f.fileno())
            time.sleep(SLOW_DISK_S / chunks)


def save(accelerator, model, path):
    if accelerator.is_main_process:
        buffer = io.BytesIO()
        torch.save(accelerator.unwrap_model(model).state_dict(), buffer)
        write_slowly(buffer.getvalue(), path)
    accelerator.wait_for_everyone()


def main():
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(TensorDataset(torch.randn(512, 32)), batch_size=16)
    model = torch.nn.Sequential(torch.nn.Linear(32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(3):
            for (x,) in loader:
                optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(model(x), x)
                accelerator.backward(loss)
                optimizer.step()
            accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
            if epoch == 1:
                save(accelerator, model, os.path.join(folder, "model.pt"))
    accelerator.end_training()


if __name__ == "__main__":
    main()

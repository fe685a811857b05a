"""gather_for_metrics is called under `if accelerator.is_main_process`."""
# case: processes=2 ending=hang causes=rank-guarded-collective ranks=0 framework=accelerate

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_dataloaders(accelerator, batch_size):
    x = torch.randn(384, 20)
    y = (x[:, 0] * x[:, 1] > 0).long()
    train = TensorDataset(x[:256], y[:256])
    val = TensorDataset(x[256:], y[256:])
    return (
        DataLoader(train, shuffle=True, batch_size=batch_size),
        DataLoader(val, batch_size=batch_size),
    )


def evaluate(accelerator, model, loader):
    model.eval()
    correct, total = 0, 0
    for x, y in loader:
        with torch.no_grad():
            predictions = model(x).argmax(dim=-1)
        if accelerator.is_main_process:  # ALSO
            predictions, y = accelerator.gather_for_metrics((predictions, y))  # GUILTY
            correct += (predictions == y).sum().item()
            total += len(y)
    return correct / max(total, 1)


def training_function(config):
    accelerator = Accelerator(cpu=True)
    set_seed(config["seed"])
    train_loader, val_loader = get_dataloaders(accelerator, config["batch_size"])
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    model, optimizer, train_loader, val_loader = accelerator.prepare(
        model, optimizer, train_loader, val_loader
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        for x, y in train_loader:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accuracy = evaluate(accelerator, model, val_loader)  # ALSO
        accelerator.wait_for_everyone()
        accelerator.print(f"epoch {epoch}: {accuracy:.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    training_function({"lr": 1e-3, "num_epochs": 3, "seed": 42, "batch_size": 16})

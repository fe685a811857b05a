"""Each process decides about early stopping from its own validation loss, so one leaves the loop before the others."""
# case: processes=2 ending=hang causes=uneven-inputs,mismatched-operation,rank-missing-collective,rank-skips-collective ranks=1 framework=accelerate

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


class EarlyStopping:
    def __init__(self, patience=2):
        self.patience, self.best, self.bad_epochs = patience, float("inf"), 0

    def step(self, loss):
        if loss < self.best:
            self.best, self.bad_epochs = loss, 0
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience


def get_dataloaders(batch_size=16):
    x = torch.randn(512, 12)
    y = x[:, :1] * 2 - x[:, 1:2]
    train = DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=True)
    # the second half of the validation set was labelled by another team
    val_y = torch.cat([y[:64], -y[64:128]])
    val = DataLoader(TensorDataset(x[:128], val_y), batch_size=batch_size)
    return train, val


def validation_loss(model, loader, criterion):
    model.eval()
    with torch.no_grad():
        losses = [criterion(model(x), y) for x, y in loader]
    model.train()
    return torch.stack(losses).mean().item()


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(7)
    train_loader, val_loader = get_dataloaders()
    shard = list(val_loader)
    half = len(shard) // accelerator.num_processes
    shard = shard[accelerator.process_index * half : (accelerator.process_index + 1) * half]
    model = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    criterion = torch.nn.MSELoss()
    model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)

    stopper = EarlyStopping()
    for epoch in range(12):
        for x, y in train_loader:
            optimizer.zero_grad()
            accelerator.backward(criterion(model(x), y))
            optimizer.step()
        val = validation_loss(accelerator.unwrap_model(model), shard, criterion)
        accelerator.print(f"epoch {epoch}: val loss {val:.4f}")
        if stopper.step(val):  # ALSO
            print(f"[{accelerator.process_index}] early stopping at epoch {epoch}")
            break  # GUILTY

    accelerator.wait_for_everyone()  # ALSO
    accelerator.print("done")
    accelerator.end_training()


if __name__ == "__main__":
    main()

"""check_trigger() is called inside the condition that sets the trigger, so only the process with the bad loss reduces the flag.

Modelled on huggingface/accelerate#1940, whose API sets a trigger on one process but has to be checked on all.
"""
# case: processes=3 ending=crash causes=rank-skips-collective,mismatched-shape,collective-mismatch,mismatched-operation,rank-missing-collective,rank-guarded-collective,mismatched-dtype ranks=1 framework=accelerate

import math

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class PriceForecaster(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.lstm = nn.LSTM(4, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, series):
        return self.head(self.lstm(series)[0][:, -1]).squeeze(-1)


def make_series(count=360, length=12):
    g = torch.Generator().manual_seed(3)
    series = torch.randn(count, length, 4, generator=g).cumsum(1) * 0.1
    price = series[:, -1, 0] + 0.05 * torch.randn(count, generator=g)
    price[223] = 900.0  # a split that was not adjusted
    return TensorDataset(series, price)


class DivergenceGuard:
    """Stop the run on all processes when a loss explodes on one."""

    def __init__(self, accelerator, limit=50.0):
        self.accelerator, self.limit = accelerator, limit

    def should_stop(self, loss):
        value = loss.item()
        if math.isnan(value) or value > self.limit:  # GUILTY
            self.accelerator.set_trigger()
            return self.accelerator.check_trigger()  # ALSO
        return False  # ALSO


def main():
    accelerator = Accelerator(cpu=True)
    set_seed(11)
    model = PriceForecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(make_series(), batch_size=6, shuffle=False)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    guard = DivergenceGuard(accelerator)
    for epoch in range(3):
        for step, (series, price) in enumerate(loader):
            loss = nn.functional.mse_loss(model(series), price)
            if guard.should_stop(loss):  # ALSO
                accelerator.print("loss diverged, stopping")
                break
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % 5 == 0:
                accelerator.print(f"epoch {epoch} step {step} loss {loss.item():.4f}", flush=True)
        accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()

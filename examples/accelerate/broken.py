"""Train with Accelerate on two ranks; the main process alone gathers predictions."""

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

Loader = DataLoader[tuple[torch.Tensor, ...]]


def loader_of(samples: int, seed: int) -> Loader:
    """Return random samples, labelled by the sign of their first value."""
    inputs = torch.randn(samples, 8, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), batch_size=16)


def accuracy_of(accelerator: Accelerator, model: torch.nn.Module, loader: Loader) -> float:
    """Return the share of samples that are classified correctly."""
    correct = total = 0
    for inputs, share in loader:
        with torch.no_grad():
            predictions = model(inputs).argmax(dim=1)
        if accelerator.is_main_process:
            predictions, labels = accelerator.gather_for_metrics((predictions, share))
            correct += int((predictions == labels).sum())
            total += len(labels)
    return correct / max(total, 1)


def train(accelerator: Accelerator) -> None:
    """Train for two epochs, and evaluate after each."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    model, optimizer, training, held_out = accelerator.prepare(
        model, optimizer, loader_of(256, seed=1), loader_of(100, seed=2)
    )
    for epoch in range(2):
        for inputs, labels in training:
            optimizer.zero_grad()
            accelerator.backward(torch.nn.functional.cross_entropy(model(inputs), labels))
            optimizer.step()
        accuracy = accuracy_of(accelerator, model, held_out)
        accelerator.print(f"epoch {epoch}: accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    train(accelerator)
    accelerator.end_training()

"""The main process exceeds its quota while it writes model.safetensors with Accelerate's save_model."""
# case: processes=2 ending=crash causes=checkpoint-folder-unusable,checkpoint-io-slow-timeout,python-exception-on-one-rank ranks=0 framework=accelerate

import resource
import tempfile

import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset


def set_quota(megabytes):
    """Limit the size of files, as a quota of the home directory does."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (megabytes << 20, hard))


class Autoencoder(torch.nn.Module):
    def __init__(self, width=2048):
        super().__init__()
        self.encoder = torch.nn.Linear(256, width)
        self.decoder = torch.nn.Linear(width, 256)

    def forward(self, x):
        return self.decoder(torch.relu(self.encoder(x)))


def export(accelerator, model, folder):
    state = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        save_file(state, f"{folder}/model.safetensors", metadata={"format": "pt"})  # GUILTY
        print("exported", sum(t.numel() for t in state.values()), "parameters")
    accelerator.wait_for_everyone()


def main():
    accelerator = Accelerator(cpu=True)
    if accelerator.is_main_process:
        set_quota(megabytes=1)
    loader = DataLoader(TensorDataset(torch.randn(256, 256)), batch_size=16)
    model = Autoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), x)
            accelerator.backward(loss)
            optimizer.step()
        accelerator.print(f"epoch {epoch} loss {loss.item():.4f}")
    with tempfile.TemporaryDirectory() as folder:
        export(accelerator, model, folder)  # ALSO
    accelerator.end_training()


if __name__ == "__main__":
    main()

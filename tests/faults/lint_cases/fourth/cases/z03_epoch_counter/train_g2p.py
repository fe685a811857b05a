import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from brain import Brain
from counters import EpochCounterWithStopper


class G2P(Brain):
    def compute_loss(self, batch):
        graphemes, phonemes = (t.to(self.device) for t in batch)
        logits = self.module(graphemes)
        return nn.functional.cross_entropy(logits.flatten(0, 1), phonemes.flatten())

    def on_stage_end(self, stage, loss, epoch):
        print(f"epoch {epoch} {stage}: {loss:.4f}")
        if stage == "valid":
            self.hparams["epoch_counter"].update_metric(loss)
            torch.save(self.module.module.state_dict(), f"{self.hparams['save']}/epoch{epoch}.pt")


def make_loader(n, shuffle):
    data = TensorDataset(torch.randint(0, 30, (n, 20)), torch.randint(0, 43, (n, 20)))
    return DataLoader(data, batch_size=32, sampler=DistributedSampler(data, shuffle=shuffle))


def main():
    torch.manual_seed(1986)
    hparams = {"epoch_counter": EpochCounterWithStopper(60, limit_to_stop=4), "save": "results"}
    model = nn.Sequential(nn.Embedding(30, 128), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 43))
    brain = G2P(model, lambda p: torch.optim.Adam(p, lr=1e-3), hparams)
    brain.fit(hparams["epoch_counter"], make_loader(6400, True), make_loader(640, False))


if __name__ == "__main__":
    main()

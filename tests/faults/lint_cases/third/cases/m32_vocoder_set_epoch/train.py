import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class AudioMelDataset(Dataset):
    def __init__(self, root):
        self.files = sorted(os.path.join(root, f) for f in os.listdir(root) if f.endswith(".pt"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        item = torch.load(self.files[i], map_location="cpu")
        return item["audio"], item["mel"]


class Collater:
    def __init__(self, frames=32, hop=256):
        self.frames, self.hop = frames, hop

    def __call__(self, batch):
        audios, mels = [], []
        for audio, mel in batch:
            start = int(torch.randint(0, max(mel.size(1) - self.frames, 1), (1,)))
            mels.append(mel[:, start : start + self.frames])
            audios.append(audio[start * self.hop : (start + self.frames) * self.hop])
        return torch.stack(audios)[:, None], torch.stack(mels)


class Generator(nn.Module):
    def __init__(self, mels=80, width=128, hop=256):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(mels, width, 7, padding=3), nn.LeakyReLU(0.2), nn.Conv1d(width, hop, 7, padding=3))

    def forward(self, mel):
        return torch.tanh(self.conv(mel).transpose(1, 2).flatten(1))[:, None]


class Trainer:
    def __init__(self, loader, sampler, model, optimizer, config, device):
        self.loader, self.sampler = loader, sampler
        self.model, self.optimizer = model, optimizer
        self.config, self.device = config, device
        self.steps, self.epochs = 0, 0
        self.finish_train = False

    def run(self):
        while not self.finish_train:
            self._train_epoch()

    def _train_step(self, batch):
        audio, mel = (x.to(self.device) for x in batch)
        loss = nn.functional.l1_loss(self.model(mel), audio)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self.optimizer.step()
        self.steps += 1
        if self.steps >= self.config["train_max_steps"]:
            self.finish_train = True

    def _train_epoch(self):
        for batch in self.loader:
            self._train_step(batch)
            if self.steps % self.config["save_interval_steps"] == 0 and self.config["rank"] == 0:
                self.save_checkpoint(os.path.join(self.config["outdir"], f"checkpoint-{self.steps}steps.pkl"))
            if self.finish_train:
                return
        self.epochs += 1
        logging.info("(steps: %d) finished %d epochs", self.steps, self.epochs)

    def save_checkpoint(self, path):
        model = self.model.module if self.config["distributed"] else self.model
        torch.save({"model": model.state_dict(), "steps": self.steps, "epochs": self.epochs}, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-dumpdir", required=True)
    parser.add_argument("--outdir", default="exp")
    parser.add_argument("--rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    args = parser.parse_args()
    config = {"outdir": args.outdir, "rank": int(os.environ.get("RANK", 0)), "train_max_steps": 400000, "save_interval_steps": 5000}
    config["distributed"] = int(os.environ.get("WORLD_SIZE", 1)) > 1
    os.makedirs(args.outdir, exist_ok=True)
    torch.cuda.set_device(args.rank)
    device = torch.device("cuda", args.rank)
    if config["distributed"]:
        dist.init_process_group(backend="nccl", init_method="env://")
    dataset = AudioMelDataset(args.train_dumpdir)
    sampler = DistributedSampler(dataset, shuffle=True) if config["distributed"] else None
    loader = DataLoader(dataset, batch_size=8, shuffle=sampler is None, sampler=sampler, collate_fn=Collater())
    model = Generator().to(device)
    if config["distributed"]:
        model = DistributedDataParallel(model, device_ids=[args.rank])
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-4)
    trainer = Trainer(loader, sampler, model, optimizer, config, device)
    trainer.run()
    if config["distributed"]:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

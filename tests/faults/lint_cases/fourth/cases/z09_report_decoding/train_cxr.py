import argparse
import json

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from decoding import greedy_decode

DS_CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 5e-5}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "overlap_comm": True},
}


class ReportModel(nn.Module):
    def __init__(self, vocab=30000, dim=768):
        super().__init__()
        self.vision = nn.Conv2d(3, dim, 32, stride=32)
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerDecoderLayer(dim, 12, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 6)
        self.head = nn.Linear(dim, vocab)

    def forward(self, images, tokens):
        memory = self.vision(images).flatten(2).transpose(1, 2)
        return self.head(self.decoder(self.embed(tokens), memory))


class Studies(Dataset):
    def __init__(self, path):
        self.entries = json.load(open(path))

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, i):
        entry = self.entries[i]
        return torch.load(entry["image"]).bfloat16(), torch.tensor(entry["tokens"])


def validate(engine, loader, device, bos=1, eos=2):
    engine.eval()
    matched = torch.zeros(2, device=device)
    for images, reference in loader:
        generated = greedy_decode(engine, images.to(device), bos, eos)
        width = min(generated.shape[1], reference.shape[1])
        hits = generated[:, :width] == reference[:, :width].to(device)
        matched += torch.stack([hits.sum(), torch.tensor(hits.numel(), device=device)])
    dist.all_reduce(matched)
    engine.train()
    return (matched[0] / matched[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", default="train.json")
    parser.add_argument("--valid", default="valid.json")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()
    deepspeed.init_distributed()
    model = ReportModel()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=DS_CONFIG)
    train = Studies(args.train)
    sampler = DistributedSampler(train, drop_last=True)
    train_loader = DataLoader(train, 4, sampler=sampler, drop_last=True)
    valid = Studies(args.valid)
    valid_loader = DataLoader(valid, 4, sampler=DistributedSampler(valid, shuffle=False))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, tokens in train_loader:
            images, tokens = images.to(engine.device), tokens.to(engine.device)
            logits = engine(images, tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
        score = validate(engine, valid_loader, engine.device)
        engine.save_checkpoint("ckpt", tag=f"epoch{epoch}", client_state={"score": score})


if __name__ == "__main__":
    main()

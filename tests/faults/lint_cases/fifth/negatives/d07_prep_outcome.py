import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class PreparationError(RuntimeError):
    pass


def encode(path, length):
    with open(path) as fp:
        rows = [json.loads(line) for line in fp]
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        if not row.get("prompt") or not row.get("response"):
            raise PreparationError(f"{path}: line {i + 1} has no prompt or no response")
        data = (row["prompt"] + "\n" + row["response"]).encode()[:length]
        ids[i, : len(data)] = torch.tensor(list(data)) + 1
    return ids


def prepare(path, length):
    """Rank 0 encodes the file; the outcome, good or bad, is told to all ranks."""
    target = f"{path}.{length}.pt"
    outcome = [None]
    if dist.get_rank() == 0:
        try:
            if not os.path.exists(target):
                ids = encode(path, length)
                torch.save(ids, target + ".part")
                os.replace(target + ".part", target)
        except Exception as e:
            outcome = [f"{type(e).__name__}: {e}"]
    dist.broadcast_object_list(outcome, src=0)
    if outcome[0] is not None:
        raise PreparationError(outcome[0])
    return TensorDataset(torch.load(target))


class ByteLM(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.embed = nn.Embedding(257, dim, padding_idx=0)
        self.rnn = nn.LSTM(dim, dim, num_layers=2, batch_first=True)
        self.out = nn.Linear(dim, 257)

    def forward(self, ids):
        return self.out(self.rnn(self.embed(ids))[0])


def train(args, device):
    dataset = prepare(args.data, args.length)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = DistributedDataParallel(ByteLM().to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for (ids,) in loader:
            ids = ids.to(device)
            logits = model(ids[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} loss on rank 0 {loss.item():.4f}")
    if dist.get_rank() == 0:
        torch.save(model.module.state_dict(), "bytelm.pt")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    try:
        train(args, device)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

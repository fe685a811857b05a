"""A damaged sample raises an exception in a data-loader worker of one rank."""
# case: processes=3 ending=crash causes=python-exception-on-one-rank ranks=1 framework=ddp

import io

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class ArchiveDataset(Dataset):
    """Samples stored as serialized tensors, as in the members of a tar file."""

    def __init__(self, n=384):
        self.blobs = []
        for i in range(n):
            buffer = io.BytesIO()
            torch.save((torch.randn(8), torch.tensor(i % 3)), buffer)
            self.blobs.append(buffer.getvalue())
        self.blobs[163] = self.blobs[163][:200]  # the download stopped here

    def __len__(self):
        return len(self.blobs)

    def __getitem__(self, index):
        return torch.load(io.BytesIO(self.blobs[index]))  # GUILTY


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    dataset = ArchiveDataset()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)

    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        running = 0.0
        for i, (inputs, labels) in enumerate(loader):  # ALSO
            optimizer.zero_grad()
            loss = loss_fn(model(inputs), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
            if rank == 0 and i % 8 == 7:
                print(f"[{epoch + 1}, {i + 1:3d}] loss: {running / 8:.3f}")
                running = 0.0
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A common training script: it saves no checkpoints and always starts from scratch."""

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
data = TensorDataset(
    torch.randn(64, 4, generator=torch.Generator().manual_seed(1)),
    torch.arange(64.0).reshape(64, 1),
)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters())

sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
loss = torch.zeros(())

for epoch in range(3):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

print(f"final loss of rank {dist.get_rank()}: {loss.item().hex()}", flush=True)  # noqa: T201 - a script
del model  # before its group (PROC013)
dist.destroy_process_group()

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from distributed import cleanup, ddp_wrap, setup, unwrap
from models import RewardModel, Transformer


def pairwise_loss(model, chosen, rejected, n_chosen, n_rejected):
    scores = model(torch.cat([chosen, rejected]), torch.cat([n_chosen, n_rejected]))
    good, bad = scores.chunk(2)
    return -nn.functional.logsigmoid(good - bad).mean()


def main():
    ctx = setup()
    torch.manual_seed(0)
    n = 2048
    data = TensorDataset(
        torch.randint(0, 32000, (n, 256)),
        torch.randint(0, 32000, (n, 256)),
        torch.randint(16, 256, (n,)),
        torch.randint(16, 256, (n,)),
    )
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler, drop_last=True)
    model = ddp_wrap(RewardModel(Transformer()).cuda(), ctx)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            loss = pairwise_loss(model, *(t.cuda() for t in batch))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step % 50 == 0 and ctx.is_main:
                print(f"epoch {epoch} step {step} loss {loss.item():.4f}")
    if ctx.is_main:
        torch.save(unwrap(model).state_dict(), "reward.pt")
    cleanup()


if __name__ == "__main__":
    main()

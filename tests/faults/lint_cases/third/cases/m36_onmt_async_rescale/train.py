import torch
import torch.distributed
from torch import nn

from distributed import all_reduce_and_rescale_tensors, multi_init


class NMTModel(nn.Module):
    def __init__(self, vocab=16000, dim=256):
        super().__init__()
        self.src = nn.Embedding(vocab, dim)
        self.tgt = nn.Embedding(vocab, dim)
        self.transformer = nn.Transformer(dim, 4, 3, 3, batch_first=True)
        self.generator = nn.Linear(dim, vocab)

    def forward(self, src, tgt):
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.size(1), device=tgt.device)
        return self.generator(self.transformer(self.src(src), self.tgt(tgt), tgt_mask=mask))


class Trainer:
    def __init__(self, model, optim, rank, world_size, norm_every=100):
        self.model, self.optim = model, optim
        self.rank, self.world_size, self.norm_every = rank, world_size, norm_every

    def train(self, batches, train_steps):
        for step in range(1, train_steps + 1):
            src, tgt = next(batches)
            logits = self.model(src, tgt[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten())
            self.optim.zero_grad()
            loss.backward()
            if self.world_size > 1:
                grads = [p.grad.data for p in self.model.parameters() if p.requires_grad and p.grad is not None]
                all_reduce_and_rescale_tensors(grads, float(self.world_size))
            self.optim.step()
            if self.rank == 0 and step % self.norm_every == 0:
                print(f"Step {step}/{train_steps}; xent: {loss.item():.2f}")


def batches(rank, size=32, length=40):
    g = torch.Generator().manual_seed(rank)
    while True:
        yield tuple(torch.randint(0, 16000, (size, length), generator=g).cuda() for _ in range(2))


def main():
    rank = multi_init(list(range(torch.cuda.device_count())))
    torch.manual_seed(3435)
    model = NMTModel().cuda()
    for p in model.parameters():
        torch.distributed.broadcast(p.data, src=0)
    optim = torch.optim.Adam(model.parameters(), lr=2e-4)
    trainer = Trainer(model, optim, rank, torch.distributed.get_world_size())
    trainer.train(batches(rank), 20000)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

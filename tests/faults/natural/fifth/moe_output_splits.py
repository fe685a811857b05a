"""Each rank assumes that it receives as many tokens from the others as it sends to them, so the sizes of the all-to-all do not agree.

Modelled on home-made expert parallelism (counts must be exchanged before all_to_all_single).
"""
# case: processes=3 ending=crash causes=mismatched-shape,collective-mismatch,silent-corruption-by-misaligned-collectives,collective-incomplete ranks=- framework=torch.distributed

import torch
import torch.distributed as dist
from torch import nn

WIDTH, TOKENS = 16, 48


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, received, sent):
        ctx.splits = received, sent
        out = x.new_empty(sum(received), x.size(1))
        dist.all_to_all_single(out, x.contiguous(), received, sent)  # ALSO
        return out

    @staticmethod
    def backward(ctx, grad):
        received, sent = ctx.splits
        out = grad.new_empty(sum(sent), grad.size(1))
        dist.all_to_all_single(out, grad.contiguous(), sent, received)  # ALSO
        return out, None, None


class ExpertLayer(nn.Module):
    def __init__(self, world):
        super().__init__()
        self.world = world
        self.router = nn.Linear(WIDTH, world)
        self.expert = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        choice = self.router(x).argmax(-1)
        order = choice.argsort(stable=True)
        sent = torch.bincount(choice, minlength=self.world).tolist()
        received = sent  # GUILTY
        routed = AllToAll.apply(x[order], received, sent)  # ALSO
        back = AllToAll.apply(self.expert(routed), sent, received)
        return x + torch.zeros_like(x).index_copy(0, order, back)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layer, head = ExpertLayer(world), nn.Linear(WIDTH, 5)
    shared = [*layer.router.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-3)
    g = torch.Generator().manual_seed(rank)
    for step in range(50):
        x, y = torch.randn(TOKENS, WIDTH, generator=g), torch.randint(0, 5, (TOKENS,), generator=g)
        loss = nn.functional.cross_entropy(head(layer(x)), y)  # ALSO
        optimizer.zero_grad()
        loss.backward()
        for p in shared:
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= world
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

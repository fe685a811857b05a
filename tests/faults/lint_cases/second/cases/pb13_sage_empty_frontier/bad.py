"""GraphSAGE with neighbour sampling; gradients are averaged by hand so that partitions may be any size."""
import logging
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("sage")


class EmptyFrontier(ValueError):
    pass


class PartitionedGraph:
    def __init__(self, part, nodes=400, dim=12, classes=4):
        gen = torch.Generator().manual_seed(70 + part)
        self.label = torch.randint(0, classes, (nodes,), generator=gen)
        self.feature = F.one_hot(self.label, dim).float() + 0.5 * torch.randn(nodes, dim, generator=gen)
        degree = torch.randint(0, 4, (nodes,), generator=gen)
        self.neighbours = [torch.randint(0, nodes, (int(d),), generator=gen) for d in degree]
        self.gen = gen

    def __len__(self):
        return len(self.label)


class NeighbourSampler:
    def __init__(self, graph, fanout=3, seeds=4):
        self.graph, self.fanout, self.seeds = graph, fanout, seeds

    def _frontier(self, nodes):
        picked = [self.graph.neighbours[n][: self.fanout] for n in nodes.tolist()]
        found = torch.cat(picked) if picked else torch.empty(0, dtype=torch.long)
        if found.numel() < len(nodes):  # RELATED: guard
            raise EmptyFrontier(f"only {found.numel()} neighbours for {len(nodes)} seeds")  # EXPECT: raise-before-collective
        return picked

    def sample(self):
        nodes = torch.randint(0, len(self.graph), (self.seeds,), generator=self.graph.gen)
        picked = self._frontier(nodes)
        context = torch.stack([
            self.graph.feature[p].mean(0) if len(p) else self.graph.feature[n] for n, p in zip(nodes.tolist(), picked)
        ])
        return self.graph.feature[nodes], context, self.graph.label[nodes]


class SAGE(nn.Module):
    def __init__(self, dim=12, hidden=24, classes=4):
        super().__init__()
        self.own, self.other = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x, context):
        return self.out(F.relu(self.own(x) + self.other(context)))


class GradientAverager:
    def __init__(self, model):
        self.parameters = list(model.parameters())

    def __call__(self):
        for p in self.parameters:
            dist.all_reduce(p.grad)  # RELATED: hidden-collective
            p.grad /= dist.get_world_size()


class Learner:
    def __init__(self, graph, device):
        self.device = device
        torch.manual_seed(1)
        self.model = SAGE().to(device)
        self.sampler = NeighbourSampler(graph)
        self.average = GradientAverager(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.skipped = 0

    def _loss(self):
        x, context, label = (t.to(self.device) for t in self.sampler.sample())
        return F.cross_entropy(self.model(x, context), label)

    def step(self):
        self.optimizer.zero_grad()
        loss = self._loss()
        loss.backward()
        self.average()
        self.optimizer.step()
        return loss.item()

    def run(self, steps):
        losses = []
        for n in range(steps):
            try:
                losses.append(self.step())
            except EmptyFrontier as error:
                self.skipped += 1
                log.info("step %d skipped: %s", n, error)
        return losses


def main():
    logging.basicConfig(level=logging.INFO)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    learner = Learner(PartitionedGraph(dist.get_rank()), device)
    losses = learner.run(200)
    print(f"[rank {dist.get_rank()}] loss {losses[-1]:.3f}, {learner.skipped} skipped", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Two-stage pipeline with data-parallel replicas of each stage, Megatron style."""
import os
from functools import cached_property

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

VOCAB, DIM, LENGTH = 53, 32, 16
STAGES = 2


class ParallelState:
    """Rank layout: all replicas of stage 0 first, then all replicas of stage 1."""

    def __init__(self, stages=STAGES):
        world = dist.get_world_size()
        assert world % stages == 0, "world size must be a multiple of the pipeline depth"
        self.stages, self.replicas = stages, world // stages
        self.rank = dist.get_rank()
        self.data_group = self.pipe_group = self.loss_group = None

    @cached_property
    def stage(self):
        return self.rank // self.replicas

    @cached_property
    def replica(self):
        return self.rank % self.replicas

    @property
    def is_first_stage(self):
        return self.stage == 0

    @property
    def is_last_stage(self):
        return self.stage + 1 == self.stages

    def peer(self, stage):
        return stage * self.replicas + self.replica

    def ranks_of_stage(self, stage):
        return list(range(stage * self.replicas, (stage + 1) * self.replicas))

    def _new(self, ranks):
        return dist.new_group(ranks)  # RELATED: hidden-collective

    def _build_data_groups(self):
        for stage in range(self.stages):
            group = self._new(self.ranks_of_stage(stage))
            if stage == self.stage:
                self.data_group = group

    def _build_pipe_groups(self):
        for replica in range(self.replicas):
            group = self._new(list(range(replica, self.stages * self.replicas, self.replicas)))
            if replica == self.replica:
                self.pipe_group = group

    def _build_loss_group(self):
        self.loss_group = self._new(self.ranks_of_stage(self.stages - 1))

    def initialize(self):
        self._build_data_groups()
        if self.is_last_stage:  # RELATED: guard
            self._build_loss_group()  # EXPECT: group-create-divergence
        self._build_pipe_groups()
        return self


class FirstStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.mix = nn.GRU(DIM, DIM, batch_first=True)

    def forward(self, ids):
        return self.mix(self.embed(ids))[0].contiguous()


class LastStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.GRU(DIM, DIM, batch_first=True)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, hidden):
        return self.head(self.mix(hidden)[0])


class PipelineTrainer:
    def __init__(self, state, device):
        self.state, self.device = state, device
        torch.manual_seed(90 + state.stage)
        self.module = (FirstStage() if state.is_first_stage else LastStage()).to(device)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=3e-3)

    def _first(self, ids):
        hidden = self.module(ids[:, :-1])
        dist.send(hidden.detach(), self.state.peer(1))
        grad = torch.empty_like(hidden)
        dist.recv(grad, self.state.peer(1))
        hidden.backward(grad)

    def _last(self, ids):
        hidden = torch.empty(len(ids), LENGTH, DIM, device=self.device)
        dist.recv(hidden, self.state.peer(0))
        hidden.requires_grad_()
        loss = F.cross_entropy(self.module(hidden).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        dist.send(hidden.grad.contiguous(), self.state.peer(0))
        dist.all_reduce(loss := loss.detach(), group=self.state.loss_group)
        return (loss / self.state.replicas).item()

    def _clip(self, limit):
        """Clip by the norm over all stages of this replica's pipeline."""
        square = sum(p.grad.square().sum() for p in self.module.parameters())
        dist.all_reduce(square, group=self.state.pipe_group)
        for p in self.module.parameters():
            p.grad *= (limit / (square.sqrt() + 1e-6)).clamp(max=1.0)

    def step(self, ids):
        self.optimizer.zero_grad()
        loss = self._first(ids) if self.state.is_first_stage else self._last(ids)
        for p in self.module.parameters():
            dist.all_reduce(p.grad, group=self.state.data_group)
            p.grad /= self.state.replicas
        self._clip(1.0)
        self.optimizer.step()
        return loss


if __name__ == "__main__":
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    dev = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    state = ParallelState().initialize()
    trainer = PipelineTrainer(state, dev)
    gen = torch.Generator().manual_seed(state.replica)
    for step in range(20):
        loss = trainer.step(torch.randint(0, VOCAB, (4, LENGTH + 1), generator=gen).to(dev))
        if step % 5 == 0 and state.is_last_stage and state.replica == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)
    dist.destroy_process_group()

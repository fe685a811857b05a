"""A serving rank without scheduled requests skips the step, although its experts are needed in the all-to-all of the other ranks.

Modelled on vllm-project/vllm#43547 (a step with zero scheduled tokens does not run the dummy batch).
"""
# case: processes=4 ending=hang causes=rank-skips-collective,mismatched-operation,collective-mismatch,rank-missing-collective ranks=3 framework=torch.distributed

import torch
import torch.distributed as dist
import torch.nn as nn

DIM, STEPS, REPORT_EVERY = 32, 60, 10


class ExpertParallelMoE(nn.Module):
    """One expert per rank; tokens travel to their expert and back."""

    def __init__(self, rank, world):
        super().__init__()
        self.rank, self.world = rank, world
        torch.manual_seed(0)
        self.router = nn.Linear(DIM, world)
        torch.manual_seed(rank)
        self.expert = nn.Sequential(nn.Linear(DIM, 64), nn.SiLU(), nn.Linear(64, DIM))

    def forward(self, hidden):
        choice = self.router(hidden).argmax(-1)
        order = choice.argsort(stable=True)
        send_counts = torch.bincount(choice, minlength=self.world)
        recv_counts = torch.empty_like(send_counts)
        dist.all_to_all_single(recv_counts, send_counts)
        received = torch.empty(int(recv_counts.sum()), DIM)
        dist.all_to_all_single(received, hidden[order].contiguous(), recv_counts.tolist(), send_counts.tolist())
        processed = self.expert(received)
        back = torch.empty_like(hidden)
        dist.all_to_all_single(back, processed, send_counts.tolist(), recv_counts.tolist())
        out = torch.empty_like(back)
        out[order] = back
        return hidden + out


class Scheduler:
    """Requests arrive in bursts; a step takes one token of each running request."""

    def __init__(self, rank):
        self.generator = torch.Generator().manual_seed(20 + rank)
        self.running = []
        self.rank = rank

    def schedule(self, step):
        arrivals = 0 if self.rank == 3 and 25 <= step < 40 else 2
        for _ in range(arrivals):
            length = int(torch.randint(2, 7, (1,), generator=self.generator))
            self.running.append([torch.randn(DIM, generator=self.generator), length])
        return self.running

    def advance(self, hidden):
        for request, state in zip(self.running, hidden, strict=True):
            request[0], request[1] = state, request[1] - 1
        self.running = [request for request in self.running if request[1] > 0]


class EngineCore:
    def __init__(self, rank, world):
        self.model = ExpertParallelMoE(rank, world)
        self.scheduler = Scheduler(rank)
        self.tokens = 0

    @torch.no_grad()
    def step(self, number):
        requests = self.scheduler.schedule(number)
        if not requests:  # GUILTY
            return  # ALSO
        hidden = torch.stack([state for state, _ in requests])
        hidden = nn.functional.normalize(self.model(hidden), dim=-1)
        self.tokens += len(requests)
        self.scheduler.advance(hidden)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    engine = EngineCore(rank, world)
    for number in range(1, STEPS + 1):
        engine.step(number)
        if number % REPORT_EVERY == 0:
            counts = [None] * world
            dist.all_gather_object(counts, engine.tokens)
            if rank == 0:
                print(f"step {number}: {sum(counts)} tokens, by rank {counts}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

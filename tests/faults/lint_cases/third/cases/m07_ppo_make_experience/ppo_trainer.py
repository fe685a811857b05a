import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

PAD, EOS = 0, 1


class TinyLM(nn.Module):
    def __init__(self, vocab=256, dim=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])


class RolloutStore:
    def __init__(self):
        self.history = []

    def push(self, elements):
        self.history += elements

    def clear(self):
        self.history = []

    def __len__(self):
        return len(self.history)


class PPOTrainer:
    def __init__(self, device, num_rollouts=128, chunk_size=16):
        self.device = device
        self.model = DDP(TinyLM().to(device), device_ids=[device.index])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5)
        self.store = RolloutStore()
        self.num_rollouts = num_rollouts
        self.chunk_size = chunk_size

    @torch.no_grad()
    def generate(self, prompts, max_new_tokens=24):
        ids = prompts
        for _ in range(max_new_tokens):
            probs = self.model.module(ids)[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
        return ids[:, prompts.size(1) :]

    def reward_fn(self, responses):
        return [float((r == 42).float().mean()) for r in responses]

    def make_experience(self):
        self.store.clear()
        while len(self.store) < self.num_rollouts:
            prompts = torch.randint(2, 256, (self.chunk_size, 8), device=self.device)
            responses = self.generate(prompts)
            lengths = (responses == EOS).int().argmax(dim=1)
            elements = []
            for prompt, response, n in zip(prompts, responses, lengths.tolist()):
                if n == 0:  # filter out empty responses
                    continue
                elements.append((prompt, response[:n]))

            scores = torch.tensor(self.reward_fn([r for _, r in elements]), device=self.device)
            stats = torch.tensor([scores.sum().item(), float(len(elements))], device=self.device)
            dist.all_reduce(stats)
            baseline = (stats[0] / stats[1].clamp(min=1)).item()
            self.store.push([(p, r, s - baseline) for (p, r), s in zip(elements, scores.tolist())])

    def learn(self, iterations=100, ppo_steps=8):
        for iteration in range(iterations):
            self.make_experience()
            for step in range(ppo_steps):
                batch = self.store.history[step * 8 : step * 8 + 8]
                ids = torch.full((len(batch), 32), PAD, device=self.device)
                for i, (p, r, _) in enumerate(batch):
                    ids[i, : len(p) + len(r)] = torch.cat([p, r])
                adv = torch.tensor([a for _, _, a in batch], device=self.device)
                logp = self.model(ids[:, :-1]).log_softmax(-1)
                logp = logp.gather(-1, ids[:, 1:, None]).squeeze(-1).mean(1)
                loss = -(adv * logp).mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            if dist.get_rank() == 0:
                print(f"iteration {iteration} done")


if __name__ == "__main__":
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(1000 + dist.get_rank())
    PPOTrainer(torch.device("cuda", local_rank)).learn()
    dist.destroy_process_group()

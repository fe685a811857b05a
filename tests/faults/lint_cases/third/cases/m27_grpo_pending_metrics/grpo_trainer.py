import re
from collections import defaultdict

import torch
from accelerate import Accelerator
from torch import nn


class GRPOTrainer:
    def __init__(self, model, reward_funcs, train_loader, num_generations=8, lr=1e-6):
        self.accelerator = Accelerator()
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, train_loader)
        self.reward_funcs = reward_funcs
        self.num_generations = num_generations
        self._pending_metrics = defaultdict(list)
        self._metrics = defaultdict(list)

    def log_metric(self, name, value):
        """For reward functions: records a scalar that is averaged over all processes."""
        self._pending_metrics[name].append(float(value))

    def _flush_metrics(self):
        device = self.accelerator.device
        for name in sorted(self._pending_metrics):
            values = self._pending_metrics[name]
            local_mean = torch.tensor(sum(values) / len(values), device=device)
            global_mean = self.accelerator.gather(local_mean).mean().item()
            self._metrics[name].append(global_mean)
        self._pending_metrics.clear()

    def _rewards(self, prompts, completions):
        rewards = torch.zeros(len(completions), device=self.accelerator.device)
        for func in self.reward_funcs:
            scores = func(prompts, completions, log_metric=self.log_metric)
            rewards += torch.tensor(scores, device=rewards.device)
        return rewards

    def train(self, sample, max_steps):
        self.model.train()
        for step, batch in enumerate(self.loader):
            ids = batch["input_ids"].repeat_interleave(self.num_generations, dim=0)
            completion_ids, texts = sample(self.accelerator.unwrap_model(self.model), ids)
            rewards = self._rewards(ids, texts).view(-1, self.num_generations)
            advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
            logits = self.model(torch.cat([ids, completion_ids], dim=1))[:, ids.size(1) - 1 : -1]
            logp = logits.log_softmax(-1).gather(-1, completion_ids[..., None]).squeeze(-1)
            loss = -(advantages.view(-1, 1) * logp).mean()
            self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self._flush_metrics()
            if step % 10 == 0:
                self.accelerator.print(step, {k: v[-1] for k, v in self._metrics.items()})
            if step + 1 == max_steps:
                break


def format_reward(prompts, completions, log_metric):
    scores = []
    for text in completions:
        match = re.search(r"<answer>(.*?)</answer>", text)
        if match:
            log_metric("format/answer_length", len(match.group(1)))
        scores.append(1.0 if match else 0.0)
    return scores


class TinyPolicy(nn.Module):
    def __init__(self, vocab=128, dim=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.rnn(self.embed(ids))[0])

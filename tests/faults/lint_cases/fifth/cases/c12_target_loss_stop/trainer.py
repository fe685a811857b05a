import time

import torch
import torch.distributed as dist
import torch.nn.functional as F


class PretrainTrainer:
    def __init__(self, args, model, optimizer, train_loader, evaluator, device):
        self.args = args
        self.model = model
        self.optimizer = optimizer
        self.train_loader = train_loader
        self.evaluator = evaluator
        self.device = device
        self.eval_val_loss = None
        self.iteration = 0

    def batches(self):
        epoch = 0
        while True:
            self.train_loader.sampler.set_epoch(epoch)
            for tokens in self.train_loader:
                yield tokens[0].to(self.device)
            epoch += 1

    def step(self, tokens):
        logits = self.model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss

    def target_reached(self):
        if self.args.target_eval_loss is None or self.eval_val_loss is None:
            return False
        return self.eval_val_loss <= self.args.target_eval_loss

    def train(self):
        start = time.time()
        for tokens in self.batches():
            self.step(tokens)
            self.iteration += 1
            if self.iteration % self.args.eval_interval == 0:
                self.eval_val_loss = self.evaluator.evaluate(self.model.module)
                if dist.get_rank() == 0:
                    print(f"iteration {self.iteration} eval loss {self.eval_val_loss:.4f}")
                if self.target_reached():
                    break
            if self.iteration >= self.args.train_iters:
                break
        return time.time() - start

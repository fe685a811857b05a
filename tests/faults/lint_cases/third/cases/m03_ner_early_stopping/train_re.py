import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from callbacks import EarlyStoppingCallback, TrainerControl


class TokenTagger(nn.Module):
    def __init__(self, vocab=5000, labels=9, dim=64):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * dim, labels)

    def forward(self, ids):
        return self.out(self.lstm(self.embed(ids))[0])


class ReTrainer:
    def __init__(self, model, train_dataset, eval_dataset, output_dir, callbacks, epochs=20):
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.device = torch.device("cuda", self.local_rank)
        self.model = DDP(model.to(self.device), device_ids=[self.local_rank])
        self.train_sampler = DistributedSampler(train_dataset)
        self.train_loader = DataLoader(train_dataset, batch_size=16, sampler=self.train_sampler)
        eval_sampler = DistributedSampler(eval_dataset, shuffle=False)
        self.eval_loader = DataLoader(eval_dataset, batch_size=16, sampler=eval_sampler)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.callbacks = callbacks
        self.control = TrainerControl()
        self.output_dir = output_dir
        self.epochs = epochs

    def is_world_process_zero(self):
        return dist.get_rank() == 0

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        counts = torch.zeros(3, device=self.device)
        for ids, tags in self.eval_loader:
            pred = self.model.module(ids.to(self.device)).argmax(-1)
            gold = tags.to(self.device)
            counts[0] += ((pred == gold) & (gold > 0)).sum()
            counts[1] += (pred > 0).sum()
            counts[2] += (gold > 0).sum()
        tp, n_pred, n_gold = counts.tolist()
        precision = tp / max(n_pred, 1)
        recall = tp / max(n_gold, 1)
        f1 = 2 * precision * recall / max(precision + recall, 1e-8)
        return {"eval_f1": f1}

    def train(self):
        for epoch in range(self.epochs):
            self.train_sampler.set_epoch(epoch)
            self.model.train()
            for ids, tags in self.train_loader:
                logits = self.model(ids.to(self.device))
                loss = nn.functional.cross_entropy(logits.flatten(0, 1), tags.to(self.device).flatten())
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            metrics = self.evaluate()
            for callback in self.callbacks:
                callback.on_evaluate(self.control, metrics)
            if self.control.should_training_stop:
                break
        if self.is_world_process_zero():
            os.makedirs(self.output_dir, exist_ok=True)
            torch.save(self.model.module.state_dict(), os.path.join(self.output_dir, "pytorch_model.bin"))
        dist.barrier()
        print(f"Training completed for rank {dist.get_rank()}.")


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    torch.manual_seed(13)
    data = [TensorDataset(torch.randint(0, 5000, (n, 48)), torch.randint(0, 9, (n, 48))) for n in (4000, 500)]
    trainer = ReTrainer(TokenTagger(), data[0], data[1], "layoutlm-re", [EarlyStoppingCallback(3)])
    trainer.train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

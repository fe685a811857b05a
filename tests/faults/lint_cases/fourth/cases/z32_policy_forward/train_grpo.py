import argparse
import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from policy import grpo_loss, sample, unwrap


class MiniLM(nn.Module):
    def __init__(self, vocab=6400, dim=512, layers=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 8, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        return self.head(self.body(self.embed(ids), mask=mask, is_causal=True))


def reward(ids, prompt_length):
    answer = ids[:, prompt_length:]
    distinct = torch.tensor([len(set(row.tolist())) for row in answer], device=ids.device)
    return distinct.float() / answer.shape[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--init", default="pretrain_512.pth")
    parser.add_argument("--prompts", default="prompts.pt")
    parser.add_argument("--num_generations", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(42 + dist.get_rank())
    model = MiniLM().cuda()
    model.load_state_dict(torch.load(args.init, map_location="cuda"))
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    data = TensorDataset(torch.load(args.prompts))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, drop_last=True)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (prompts,) in enumerate(loader):
            prompts = prompts.cuda().repeat_interleave(args.num_generations, dim=0)
            ids = sample(model, prompts, new_tokens=128)
            scores = reward(ids, prompts.shape[1]).view(-1, args.num_generations)
            advantages = ((scores - scores.mean(1, keepdim=True)) / (scores.std(1, keepdim=True) + 1e-4)).flatten()
            loss = grpo_loss(model, reference, ids, prompts.shape[1], advantages)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 100 == 0 and dist.get_rank() == 0:
                print(f"step {step} reward {scores.mean().item():.3f}")
                torch.save(unwrap(model).state_dict(), "grpo_512.pth")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from evaluate import evaluate, loss_func


class GPTModel(nn.Module):
    def __init__(self, vocab=50304, dim=256, layers=4):
        super().__init__()
        self.embedding = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(dim, 4, batch_first=True) for _ in range(layers)])
        self.output_layer = nn.Linear(dim, vocab, bias=False)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), device=tokens.device)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.output_layer(x)


def sft_iterator(seed, micro_batch_size, seq_length=512):
    """Conversations: only the tokens of the answer, a few or many, count for the loss."""
    g = torch.Generator().manual_seed(seed)
    while True:
        text = torch.randint(0, 50304, (micro_batch_size, seq_length + 1), generator=g)
        answer = torch.randint(1, seq_length, (micro_batch_size, 1), generator=g)
        loss_mask = torch.arange(seq_length)[None] >= seq_length - answer
        yield text[:, :-1].cuda(), text[:, 1:].cuda(), loss_mask.cuda()


def train_step(model, optimizer, data_iterator, dp_group):
    tokens, labels, loss_mask = next(data_iterator)
    loss_sum, num_tokens = loss_func(loss_mask, model(tokens), labels)
    all_tokens = num_tokens.clone()
    dist.all_reduce(all_tokens, group=dp_group)
    # DDP divides by the number of ranks; the loss is per token of the global batch
    loss = loss_sum * dist.get_world_size(group=dp_group) / all_tokens.clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-iters", type=int, default=1000)
    parser.add_argument("--eval-interval", type=int, default=100)
    parser.add_argument("--eval-iters", type=int, default=20)
    parser.add_argument("--micro-batch-size", type=int, default=4)
    args = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    dp_group = dist.group.WORLD
    torch.manual_seed(1234)
    model = DistributedDataParallel(GPTModel().cuda(), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    train_data = sft_iterator(1000 + rank, args.micro_batch_size)
    for iteration in range(1, args.train_iters + 1):
        train_step(model, optimizer, train_data, dp_group)
        if iteration % args.eval_interval == 0:
            valid_data = sft_iterator(5000 + rank, args.micro_batch_size)
            loss = evaluate(model, valid_data, args.eval_iters, dp_group)
            if rank == 0:
                print(f"iteration {iteration} | lm loss {loss:.4f} | ppl {math.exp(min(20, loss)):.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

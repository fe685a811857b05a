import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from train_utils import evaluation, setup_environ_flags, train


class DecoderLM(nn.Module):
    def __init__(self, vocab=32000, dim=512, layers=4):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(dim, 8, batch_first=True) for _ in range(layers)])
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1), device=ids.device)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        return self.head(x)


def make_loader(n, batch_size, shuffle):
    data = TensorDataset(torch.randint(0, 32000, (n, 256)))
    sampler = DistributedSampler(data, shuffle=shuffle)
    return DataLoader(data, batch_size=batch_size, sampler=sampler, drop_last=shuffle)


def main():
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    rank = int(os.environ["RANK"])
    setup_environ_flags(rank)
    torch.manual_seed(42)
    model = DecoderLM()
    torch.cuda.set_device(rank)
    model = FSDP(model, device_id=torch.cuda.current_device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train_loader = make_loader(4096, 4, True)
    eval_loader = make_loader(256, 4, False)
    for epoch in range(3):
        train_loader.sampler.set_epoch(epoch)
        train(model, train_loader, optimizer, rank)
        ppl = evaluation(model, eval_loader, rank)
        if rank == 0:
            print(f"epoch {epoch} perplexity {ppl:.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from evaluator import Evaluator
from trainer import PretrainTrainer


class SmallLM(nn.Module):
    def __init__(self, vocab=32000, dim=512, layers=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        block = nn.TransformerEncoderLayer(dim, 8, 4 * dim, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, layers)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.embed(tokens), mask=mask, is_causal=True))


def loader(path, batch_size, shuffle):
    data = TensorDataset(torch.load(path))
    return DataLoader(data, batch_size, sampler=DistributedSampler(data, shuffle=shuffle), drop_last=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", required=True)
    parser.add_argument("--valid", required=True)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--train-iters", type=int, default=100000)
    parser.add_argument("--eval-interval", type=int, default=500)
    parser.add_argument("--eval-iters", type=int, default=32)
    parser.add_argument("--target-eval-loss", type=float, default=None)
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    model = DistributedDataParallel(SmallLM().to(device), device_ids=[device.index])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    evaluator = Evaluator(loader(args.valid, args.batch_size, False), args.eval_iters, device)
    trainer = PretrainTrainer(args, model, optimizer, loader(args.train, args.batch_size, True), evaluator, device)
    seconds = trainer.train()
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"stopped at iteration {trainer.iteration} after {seconds:.0f} s")
        torch.save(model.module.state_dict(), "pretrained.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

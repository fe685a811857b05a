import argparse
import logging
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from dflash import DraftModel, NoValidAnchorsError, sample_anchors

logger = logging.getLogger(__name__)


def collate(rows):
    lengths = torch.tensor([len(r["input_ids"]) for r in rows])
    ids = nn.utils.rnn.pad_sequence([r["input_ids"] for r in rows], batch_first=True)
    hidden = nn.utils.rnn.pad_sequence([r["hidden"] for r in rows], batch_first=True)
    return ids, hidden, lengths


class DFlashTrainer:
    def __init__(self, model, device, lr=1e-4):
        self.device = device
        self.model = DistributedDataParallel(model.to(device), device_ids=[device.index])
        self.block_size = model.block_size
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)

    def compute_loss(self, batch):
        ids, hidden, lengths = batch
        rows, anchors = sample_anchors(lengths, self.block_size)
        index = anchors[:, None] + torch.arange(self.block_size + 1)
        tokens = ids[rows[:, None], index].to(self.device)
        states = hidden[rows[:, None], index[:, :-1]].to(self.device)
        logits = self.model(tokens[:, :-1], states)
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def train_epoch(self, loader):
        skipped = 0
        for step, batch in enumerate(loader):
            try:
                loss = self.compute_loss(batch)
            except NoValidAnchorsError:
                skipped += 1
                continue
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            if step % 20 == 0 and dist.get_rank() == 0:
                logger.info("step %d loss %.4f", step, loss.item())
        return skipped


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--features", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(7)
    rows = torch.load(args.features, map_location="cpu")
    sampler = DistributedSampler(rows)
    loader = DataLoader(rows, batch_size=4, sampler=sampler, collate_fn=collate)
    trainer = DFlashTrainer(DraftModel(), torch.device("cuda", local_rank))
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        skipped = trainer.train_epoch(loader)
        logger.info("epoch %d, %d micro-batches skipped", epoch, skipped)
    if dist.get_rank() == 0:
        torch.save(trainer.model.module.state_dict(), "dflash.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

import argparse
import logging
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from vqa_data import VQADataset

logger = logging.getLogger(__name__)


class QuestionImageModel(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.words = nn.Embedding(30522, 256, padding_idx=0)
        self.regions = nn.Linear(args.img_feature_dim, 256)
        layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4)
        self.classifier = nn.Linear(256, args.num_labels)

    def forward(self, ids, feats):
        x = torch.cat([self.words(ids), self.regions(feats)], dim=1)
        return self.classifier(self.encoder(x)[:, 0])


@torch.no_grad()
def evaluate(args, model, dataset):
    net = model.module if hasattr(model, "module") else model
    net.eval()
    loader = DataLoader(dataset, sampler=SequentialSampler(dataset), batch_size=args.batch_size)
    score = 0.0
    for ids, feats, target in loader:
        best = net(ids.to(args.device), feats.to(args.device)).argmax(1)
        score += target.to(args.device).gather(1, best[:, None]).sum().item()
    net.train()
    return score / len(dataset)


def train(args, train_dataset, eval_dataset, model):
    sampler = RandomSampler(train_dataset) if args.local_rank == -1 else DistributedSampler(train_dataset)
    loader = DataLoader(train_dataset, sampler=sampler, batch_size=args.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    if args.local_rank != -1:
        model = DistributedDataParallel(model, device_ids=[args.local_rank])
    global_step, best_score = 0, 0.0
    for epoch in range(args.num_train_epochs):
        if args.local_rank != -1:
            sampler.set_epoch(epoch)
        for ids, feats, target in loader:
            logits = model(ids.to(args.device), feats.to(args.device))
            loss = F.binary_cross_entropy_with_logits(logits, target.to(args.device)) * args.num_labels
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            global_step += 1
            if args.local_rank in [-1, 0] and args.logging_steps > 0 and global_step % args.logging_steps == 0:
                if args.local_rank not in [-1, 0]:
                    torch.distributed.barrier()
                if args.local_rank in [-1, 0] and args.evaluate_during_training:
                    score = evaluate(args, model, eval_dataset)
                    best_score = max(best_score, score)
                    logger.info("step %d score %.4f best %.4f", global_step, score, best_score)
                if args.local_rank == 0:
                    torch.distributed.barrier()
    return model


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--output_dir", required=True)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--img_feature_dim", type=int, default=2054)
    parser.add_argument("--num_labels", type=int, default=3129)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--learning_rate", type=float, default=5e-5)
    parser.add_argument("--num_train_epochs", type=int, default=25)
    parser.add_argument("--logging_steps", type=int, default=1000)
    parser.add_argument("--evaluate_during_training", action="store_true")
    args = parser.parse_args()
    args.local_rank = int(os.environ.get("LOCAL_RANK", -1))
    if args.local_rank == -1:
        args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    else:
        torch.cuda.set_device(args.local_rank)
        args.device = torch.device("cuda", args.local_rank)
        torch.distributed.init_process_group("nccl")
    logging.basicConfig(level=logging.INFO if args.local_rank in [-1, 0] else logging.WARN)
    torch.manual_seed(42)
    model = QuestionImageModel(args).to(args.device)
    model = train(args, VQADataset(args, "train"), VQADataset(args, "val"), model)
    if args.local_rank == -1 or torch.distributed.get_rank() == 0:
        os.makedirs(args.output_dir, exist_ok=True)
        net = model.module if hasattr(model, "module") else model
        torch.save(net.state_dict(), os.path.join(args.output_dir, "pytorch_model.bin"))


if __name__ == "__main__":
    main()

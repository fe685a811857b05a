import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Prompts(Dataset):
    def __init__(self, n, vocab, length, seed):
        gen = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, vocab, (n, length), generator=gen)

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return index, self.ids[index]


class RankShare:
    """Indices r, r + W, r + 2W, ... without repeating any of them."""

    def __init__(self, size, rank, world_size):
        self.indices = range(rank, size, world_size)

    def __iter__(self):
        return iter(self.indices)

    def __len__(self):
        return len(self.indices)


class EventModel(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    @torch.no_grad()
    def generate(self, ids, max_new_tokens):
        hidden, state = self.rnn(self.emb(ids))
        token = self.out(hidden[:, -1:]).argmax(-1)
        tokens = [token]
        for _ in range(max_new_tokens - 1):
            hidden, state = self.rnn(self.emb(token), state)
            token = self.out(hidden).argmax(-1)
            tokens.append(token)
        return torch.cat(tokens, dim=1)


def rank_file(folder, rank):
    return os.path.join(folder, f"rank_{rank:04d}.jsonl")


def write_rank_output(folder, rank, rows):
    path = rank_file(folder, rank)
    with open(path + ".tmp", "w") as handle:
        for row in rows:
            handle.write(json.dumps(row) + "\n")
    os.replace(path + ".tmp", path)


def finalize(folder, world_size, expected, target):
    rows = []
    for rank in range(world_size):
        with open(rank_file(folder, rank)) as handle:
            rows.extend(json.loads(line) for line in handle)
    rows.sort(key=lambda row: row["index"])
    if [row["index"] for row in rows] != list(range(expected)):
        raise RuntimeError("the shards do not cover the data set")
    with open(target, "w") as handle:
        json.dump(rows, handle)
    for rank in range(world_size):
        os.remove(rank_file(folder, rank))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default=None)
    parser.add_argument("--output-dir", default="generated")
    parser.add_argument("--num-prompts", type=int, default=1001)
    parser.add_argument("--vocab", type=int, default=4096)
    parser.add_argument("--prompt-length", type=int, default=64)
    parser.add_argument("--max-new-tokens", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    torch.manual_seed(0)

    model = EventModel(args.vocab, 256)
    if args.weights:
        model.load_state_dict(torch.load(args.weights, map_location="cpu"))
    model.to(device).eval()

    shard_dir = os.path.join(args.output_dir, "shards")
    os.makedirs(shard_dir, exist_ok=True)
    dataset = Prompts(args.num_prompts, args.vocab, args.prompt_length, seed=5)
    loader = DataLoader(dataset, args.batch_size, sampler=RankShare(len(dataset), rank, world_size))
    rows = []
    for indices, ids in loader:
        generated = model.generate(ids.to(device), args.max_new_tokens).tolist()
        rows.extend({"index": i, "tokens": tokens} for i, tokens in zip(indices.tolist(), generated))
    write_rank_output(shard_dir, rank, rows)
    dist.barrier()
    if rank == 0:
        finalize(shard_dir, world_size, len(dataset), os.path.join(args.output_dir, "generated.json"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

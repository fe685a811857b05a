"""Rank 0 starts an evaluation program with its output in a pipe and waits for its end before reading; the pipe is full and the program never ends.

In the style of a language-model script that scores samples with an external program after each epoch.
"""
# case: processes=3 ending=hang causes=rank-missing-collective,file-io-blocked ranks=0 framework=ddp

import argparse
import json
import subprocess
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

SCORER = """
import json, sys
samples = json.load(open(sys.argv[1]))
scores = []
for i, sample in enumerate(samples):
    runs = sum(1 for a, b in zip(sample, sample[1:]) if a != b)
    scores.append(runs / max(1, len(sample) - 1))
    print(f"sample {i}: {' '.join(map(str, sample))}")
print(json.dumps({"diversity": sum(scores) / len(scores)}))
"""


class CharModel(nn.Module):
    def __init__(self, vocab=64, dim=32):
        super().__init__()
        self.embed, self.rnn, self.head = nn.Embedding(vocab, dim), nn.GRU(dim, dim, batch_first=True), nn.Linear(dim, vocab)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])

    @torch.no_grad()
    def generate(self, count, length):
        tokens = torch.randint(0, 64, (count, 1))
        while tokens.size(1) < length:
            probabilities = self(tokens[:, -8:])[:, -1].softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(probabilities, 1)], dim=1)
        return tokens.tolist()


def score(samples, path):
    with open(path, "w") as f:
        json.dump(samples, f)
    scorer = subprocess.Popen([sys.executable, "-c", SCORER, path], stdout=subprocess.PIPE, text=True)
    if scorer.wait() != 0:  # GUILTY
        raise RuntimeError("the scorer failed")
    return json.loads(scorer.stdout.readlines()[-1])["diversity"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=16, help="samples to score after the first epoch; doubled each epoch")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    model = DDP(CharModel())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(args.epochs):
        for _ in range(30):
            tokens = (torch.randint(0, 64, (16, 1)) + torch.arange(25)) % 64
            loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        result = torch.zeros(1)
        if rank == 0:
            samples = model.module.generate(args.samples << 2 * epoch, 128)
            result[0] = score(samples, "samples.json")  # ALSO
            print(f"epoch {epoch} loss {loss.item():.3f} diversity {result.item():.3f}", flush=True)
        dist.broadcast(result, src=0)
        if result.item() > 0.999:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

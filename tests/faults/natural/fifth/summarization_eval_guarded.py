"""Evaluation fails on one rank with an exception that is logged and ignored, so this rank trains on while the others gather predictions.

Modelled on accelerate#2785 and #157, with an evaluation in a broad try block, as in scripts which must not die of a bad metric.
"""
# case: processes=3 ending=hang causes=rank-skips-collective,failed-evaluation-counted,collective-mismatch,mismatched-operation,mismatched-shape,python-exception-on-one-rank,rank-missing-collective,collective-order-inversion,silent-corruption-by-misaligned-collectives ranks=2 framework=accelerate

import logging

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("summarize")
VOCAB, LENGTH, EOS = 60, 12, 1


class Summarizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, 32)
        self.mix = nn.Linear(32 * LENGTH, 32)
        self.out = nn.Linear(32, VOCAB)

    def forward(self, tokens):
        hidden = torch.relu(self.mix(self.emb(tokens).flatten(1)))
        return self.out(hidden[:, None] + self.emb(tokens))


def articles(count, seed):
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(2, VOCAB, (count, LENGTH), generator=g)
    ends = torch.randint(3, LENGTH - 1, (count, 1), generator=g)
    tokens[torch.arange(LENGTH) >= ends] = EOS
    return tokens


def until_eos(row):
    return row[: row.index(EOS)]  # ALSO


def overlap(prediction, reference):
    prediction, reference = set(prediction), set(reference)
    return 2 * len(prediction & reference) / (len(prediction) + len(reference))


@torch.no_grad()
def evaluate(accelerator, model, loader):
    model.eval()
    scores = []
    for predictions, references in loader:
        pairs = zip(predictions.tolist(), references.tolist())
        batch = torch.tensor([overlap(until_eos(p), until_eos(r)) for p, r in pairs])  # ALSO
        scores.append(accelerator.gather_for_metrics(batch))  # ALSO
    return torch.cat(scores).mean().item()


def main():
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    train = TensorDataset(articles(360, 0))
    references = articles(48, 1)
    predictions = references.clone()
    predictions[:, 0] = 5
    predictions[21] = torch.arange(2, 2 + LENGTH)
    model = Summarizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer, loader, dev = accelerator.prepare(
        model,
        optimizer,
        DataLoader(train, batch_size=10, shuffle=True),
        DataLoader(TensorDataset(predictions, references), batch_size=4),
    )
    for epoch in range(3):
        model.train()
        for (tokens,) in loader:
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())  # ALSO
            accelerator.backward(loss)  # ALSO
            optimizer.step()
            optimizer.zero_grad()
        try:
            score = evaluate(accelerator, model, dev)  # ALSO
            accelerator.print(f"epoch {epoch} loss {loss.item():.3f} overlap {score:.3f}", flush=True)
        except Exception as error:  # GUILTY
            log.warning("epoch %d: no score (%s)", epoch, error)  # ALSO
    accelerator.end_training()


if __name__ == "__main__":
    main()

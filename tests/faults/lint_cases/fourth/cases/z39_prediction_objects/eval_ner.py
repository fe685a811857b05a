import argparse
import json
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from evalkit import EvalContext


def load_sentences(path):
    rows = []
    for i, line in enumerate(Path(path).read_text().splitlines()):
        record = json.loads(line)
        rows.append({"id": i, "words": record["words"], "tags": record["tags"]})
    return rows


class Tagger:
    def __init__(self, name, device):
        self.tokenizer = AutoTokenizer.from_pretrained(name)
        self.model = AutoModelForTokenClassification.from_pretrained(name).to(device).eval()
        self.device = device

    @torch.no_grad()
    def __call__(self, words):
        enc = self.tokenizer(words, is_split_into_words=True, return_tensors="pt", truncation=True)
        labels = self.model(**enc.to(self.device)).logits[0].argmax(-1).tolist()
        tags = {}
        for position, word in enumerate(enc.word_ids()):
            if word is not None and word not in tags:
                tags[word] = self.model.config.id2label[labels[position]]
        return [tags.get(i, "O") for i in range(len(words))]


def f1(rows):
    counts = Counter()
    for row in rows:
        for gold, pred in zip(row["tags"], row["pred"]):
            counts["gold"] += gold != "O"
            counts["pred"] += pred != "O"
            counts["hit"] += gold == pred != "O"
    precision = counts["hit"] / max(counts["pred"], 1)
    recall = counts["hit"] / max(counts["gold"], 1)
    return 2 * precision * recall / max(precision + recall, 1e-9)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="dslim/bert-base-NER")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", default="predictions.json")
    args = parser.parse_args()
    context = EvalContext()
    tagger = Tagger(args.model, context.device)
    rows = context.shard(load_sentences(args.data))
    for row in rows:
        row["pred"] = tagger(row["words"])
    everything = sorted(context.collect(rows), key=lambda r: r["id"])
    if context.rank == 0:
        Path(args.out).write_text(json.dumps(everything))
        print(f"{len(everything)} sentences, F1 {f1(everything):.4f}")
    context.close()


if __name__ == "__main__":
    main()

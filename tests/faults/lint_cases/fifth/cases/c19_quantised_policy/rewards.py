import torch


class LengthPenalisedSentiment:
    """Counts words of a small lexicon and takes off a bit for long answers."""

    good = {"great", "good", "lovely", "wonderful", "moving", "funny"}
    bad = {"bad", "boring", "awful", "dull", "poor"}

    def __init__(self, tokenizer, length_cost=0.01):
        self.tokenizer = tokenizer
        self.length_cost = length_cost

    def __call__(self, sequences):
        scores = []
        for text in self.tokenizer.batch_decode(sequences, skip_special_tokens=True):
            words = text.lower().split()
            value = sum(w in self.good for w in words) - sum(w in self.bad for w in words)
            scores.append(value - self.length_cost * len(words))
        return torch.tensor(scores)

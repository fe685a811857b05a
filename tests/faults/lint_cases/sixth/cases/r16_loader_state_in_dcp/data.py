import json

import torch


class PackedLoader:
    """Packs the examples of this rank into rows of ``seq_len`` tokens, cycling over the file."""

    def __init__(self, path, seq_len, rows, rank, world_size):
        with open(path) as handle:
            self.examples = [json.loads(line)["ids"] for line in handle][rank::world_size]
        self.seq_len = seq_len
        self.rows = rows
        self.step = 0

    def _next_example(self):
        example = self.examples[self.step % len(self.examples)]
        self.step += 1
        return example[: self.seq_len + 1]

    def __iter__(self):
        while True:
            batch = torch.zeros(self.rows, self.seq_len + 1, dtype=torch.long)
            for row in batch:
                used = 0
                while used < self.seq_len // 2:
                    ids = self._next_example()[: row.numel() - used]
                    row[used:used + len(ids)] = torch.tensor(ids)
                    used += len(ids)
            yield batch[:, :-1], batch[:, 1:]

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]

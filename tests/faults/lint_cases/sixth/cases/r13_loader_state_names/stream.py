import torch


class TokenStream:
    """Endless stream over a flat token file; every data rank owns a strided share."""

    def __init__(self, path, seq_len, batch_size, rank, size):
        tokens = torch.load(path, map_location="cpu")
        rows = tokens.numel() // (seq_len + 1)
        self.rows = tokens[: rows * (seq_len + 1)].view(rows, seq_len + 1)[rank::size]
        self.batch_size = batch_size
        self.position = 0

    def next_batch(self):
        picked = []
        while len(picked) < self.batch_size:
            row = self.rows[self.position % self.rows.size(0)]
            self.position += 1
            if row[0] != 0:
                picked.append(row)
        return torch.stack(picked).long()

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]

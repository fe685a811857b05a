"""One rank skips backward for a batch whose CTC loss is infinite, so its gradients are reduced one step late and it reaches the end of the epoch one reduction short.

Modelled on NVIDIA-NeMo/Automodel#2468 and ecmwf/WeatherGenerator#2718 (per-rank skip of a bad batch under DDP).
"""
# case: processes=3 ending=hang causes=rank-skips-collective,uneven-inputs,rank-missing-collective,collective-mismatch,mismatched-shape,mismatched-operation,rank-exits-early,silent-corruption-by-misaligned-collectives ranks=2 framework=ddp

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

MEL, CHARS = 24, 30


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(MEL, 48, 3, padding=1)
        self.rnn = nn.GRU(48, 48, batch_first=True)
        self.out = nn.Linear(48, CHARS)

    def forward(self, mel):
        hidden, _ = self.rnn(torch.relu(self.conv(mel)).transpose(1, 2))
        return self.out(hidden).log_softmax(-1).transpose(0, 1)


class Utterances(torch.utils.data.Dataset):
    """Clips of about a second; a few have a transcript that is too long for their frames."""

    def __init__(self, size=480):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        frames, chars = 40, 10
        if index == 311:
            chars = 44
        text = torch.zeros(48, dtype=torch.long)
        text[:chars] = torch.randint(1, CHARS, (chars,), generator=g)
        return torch.randn(MEL, frames, generator=g), text, chars


def train_epoch(model, loader, optimizer, ctc):
    seen = 0
    for mel, text, chars in loader:
        log_probs = model(mel)
        frames = torch.full((len(mel),), log_probs.size(0))
        loss = ctc(log_probs, text, frames, chars)
        if not torch.isfinite(loss):  # GUILTY
            optimizer.zero_grad()
            continue  # ALSO
        optimizer.zero_grad()
        loss.backward()  # ALSO
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        seen += len(mel)
    return seen, loss.item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    data = Utterances()
    sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
    loader = torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler)
    model = DDP(Recognizer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ctc = nn.CTCLoss()
    for epoch in range(3):
        sampler.set_epoch(epoch)
        seen, loss = train_epoch(model, loader, optimizer, ctc)
        counts = torch.tensor([float(seen), loss])
        dist.barrier()  # ALSO
        dist.all_reduce(counts)
        if rank == 0:
            print(f"epoch {epoch} clips {int(counts[0])} loss {counts[1] / 3:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

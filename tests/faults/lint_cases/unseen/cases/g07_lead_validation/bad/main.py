"""Trains TrackNet; the leading process validates, writes the best weights and decides when to stop."""
import os
import pathlib

import torch
import torch.distributed as dist

from engine import PHASES, TrackNet, TrainState, mean_over_ranks

CONFIG = {
    "num_epochs": 4,
    "patience": 2,
    "events_per_rank": 4,
    "elements": 12,
    "outdir": os.path.join(os.environ.get("CASE_TMP", "."), "mlpf"),
}


def toy_events(seed, n, elements):
    g = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(elements, 7, generator=g),
            {"cls": torch.randint(0, 3, (elements,), generator=g), "mom": torch.rand(elements, generator=g)},
        )
        for _ in range(n)
    ]


class History:
    def __init__(self, outdir):
        self.outdir = pathlib.Path(outdir)
        self.rows = []

    def record(self, state, train_loss, valid_loss):
        self.rows.append((state.epoch, train_loss, valid_loss))
        print(f"epoch {state.epoch}: train {train_loss:.4f} valid {valid_loss:.4f} stale {state.stale}")

    def keep_best(self, state, valid_loss):
        if valid_loss < state.best:
            state.best, state.stale = valid_loss, 0
            self.outdir.mkdir(parents=True, exist_ok=True)
            torch.save(state.net.state_dict(), self.outdir / "best_weights.pth")
        else:
            state.stale += 1


def should_stop(state, patience):
    """The leading process decides; the others follow."""
    flag = torch.tensor([int(state.stale > patience)])
    if dist.is_initialized():
        dist.broadcast(flag, src=0)
    return bool(flag.item())


def train_all_epochs(state, train_loader, valid_loader, config):
    history = History(config["outdir"])
    for state.epoch in range(1, config["num_epochs"] + 1):
        train_loss = mean_over_ranks(PHASES["train"](state, train_loader))

        if state.lead:  # RELATED: guard
            valid_loss = PHASES["valid"](state, valid_loader)  # EXPECT: rank-guarded-wrapped-forward
            history.keep_best(state, valid_loss)
            history.record(state, train_loss, valid_loss)

        if dist.is_initialized():
            dist.barrier()
        if should_stop(state, config["patience"]):
            break
    return history


def main():
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(0)
    state = TrainState(TrackNet())
    train_loader = toy_events(100 + rank, CONFIG["events_per_rank"], CONFIG["elements"])
    valid_loader = toy_events(7, 2, CONFIG["elements"])
    train_all_epochs(state, train_loader, valid_loader, CONFIG)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

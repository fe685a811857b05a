import torch


def evaluate_sequences(folder, ground_truth, threshold=0.4):
    """Detection accuracy over the frames of all sequences, and the share of stable embeddings."""
    hits, found, wanted, stable, pairs = 0, 0, 0, 0, 0
    previous = None
    for name in sorted(ground_truth):
        rows = torch.load(folder / f"{name}.pt")
        cells = set(rows["cell"][rows["score"] > threshold].tolist())
        truth = set(ground_truth[name])
        hits += len(cells & truth)
        found += len(cells)
        wanted += len(truth)
        if previous is not None:
            stable += (previous @ rows["embed"].T).argmax(dim=1).eq(torch.arange(50)).sum().item()
            pairs += 50
        previous = rows["embed"]
    return {
        "precision": hits / max(found, 1),
        "recall": hits / max(wanted, 1),
        "stability": stable / max(pairs, 1),
    }

import torch
from torch.utils.data import Dataset


class MoleculeSet(Dataset):
    def __init__(self, path, split):
        self.graphs = torch.load(path, map_location="cpu")[split]

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, index):
        return self.graphs[index]


def collate(graphs):
    offset, x, edges, batch = 0, [], [], []
    for i, graph in enumerate(graphs):
        x.append(graph["x"])
        edges.append(graph["edge_index"] + offset)
        batch.append(torch.full((len(graph["x"]),), i))
        offset += len(graph["x"])
    return {
        "x": torch.cat(x),
        "edge_index": torch.cat(edges, dim=1),
        "batch": torch.cat(batch),
        "y": torch.stack([graph["y"] for graph in graphs]),
    }

import math

import torch


class CSRGraph:
    """Compressed neighbour lists for a homogeneous graph."""

    def __init__(self, indptr, indices):
        self.indptr = indptr
        self.indices = indices

    @classmethod
    def random(cls, num_nodes, degree, generator):
        indices = torch.randint(0, num_nodes, (num_nodes * degree,), generator=generator)
        indptr = torch.arange(0, num_nodes * degree + 1, degree)
        return cls(indptr, indices)

    def sample_neighbors(self, nodes, fanout):
        start = self.indptr[nodes]
        degree = self.indptr[nodes + 1] - start
        offsets = (torch.rand(len(nodes), fanout) * degree.unsqueeze(1)).long()
        return self.indices[start.unsqueeze(1) + offsets]


def seeds_for_process(seeds, proc_id, num_procs):
    """Part of the seed nodes that process ``proc_id`` trains on."""
    chunk = math.ceil(len(seeds) / num_procs)
    return torch.split(seeds, chunk)[proc_id]


class NodeBatchCollator:
    def __init__(self, graph, features, labels, fanout):
        self.graph = graph
        self.features = features
        self.labels = labels
        self.fanout = fanout

    def __call__(self, seed_list):
        seeds = torch.stack(seed_list)
        neighbors = self.graph.sample_neighbors(seeds, self.fanout)
        return self.features[seeds], self.features[neighbors], self.labels[seeds]

import torch


class PretrainingBatchSampler:
    """Yields this rank's part of consecutive global batches.

    ``consumed_samples`` counts samples over the whole run; a global batch that is
    not complete is left out.
    """

    def __init__(self, total_samples, consumed_samples, micro_batch_size, rank, size, grad_accum=1):
        self.micro_batch_size = micro_batch_size
        self.rank = rank
        self.size = size
        self.global_batch = micro_batch_size * size * grad_accum
        self.usable = total_samples // self.global_batch * self.global_batch
        if self.usable == 0:
            raise ValueError("data set smaller than one global batch")
        self.consumed_samples = consumed_samples % self.usable

    def __len__(self):
        return self.usable // (self.micro_batch_size * self.size)

    def __iter__(self):
        stride = self.micro_batch_size * self.size
        for start in range(self.consumed_samples, self.usable, stride):
            first = start + self.rank * self.micro_batch_size
            yield list(range(first, first + self.micro_batch_size))


def cyclic_iter(loader):
    while True:
        for batch in loader:
            yield batch


def build_iterator(dataset, consumed_samples, micro_batch_size, rank, size, grad_accum, workers):
    sampler = PretrainingBatchSampler(len(dataset), consumed_samples, micro_batch_size, rank, size, grad_accum)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=workers, pin_memory=True)
    return cyclic_iter(loader)

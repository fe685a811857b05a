from torch.utils.data import DataLoader, DistributedSampler


class DataLoaderShard:
    """Loader over this process' shard that reseeds its sampler on every pass."""

    def __init__(self, dataset, sampler, batch_size, skip_batches=0, iteration=0):
        self.dataset = dataset
        self.sampler = sampler
        self.batch_size = batch_size
        self.skip_batches = skip_batches
        self.iteration = iteration
        self._base = DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=True)

    def set_epoch(self, epoch):
        self.iteration = epoch
        self.sampler.set_epoch(epoch)

    def __len__(self):
        return len(self._base) - self.skip_batches

    def __iter__(self):
        self.set_epoch(self.iteration)
        for index, batch in enumerate(self._base):
            if index >= self.skip_batches:
                yield batch
        self.iteration += 1


def prepare_data_loader(dataset, batch_size, rank, world_size, seed):
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=seed)
    return DataLoaderShard(dataset, sampler, batch_size)


def skip_first_batches(loader, num_batches):
    """A loader that starts ``num_batches`` into the current pass of ``loader``."""
    return DataLoaderShard(loader.dataset, loader.sampler, loader.batch_size, skip_batches=num_batches)

import random
import time

import numpy as np


class NpzReader:
    """Reads the samples of this rank, one file a sample, and yields full batches."""

    def __init__(self, args):
        self.args = args
        self.bytes_read = 0
        self.read_time = 0.0

    def read(self, path):
        start = time.perf_counter()
        with np.load(path) as archive:
            sample = archive["x"]
        self.read_time += time.perf_counter() - start
        self.bytes_read += sample.nbytes
        return sample

    def batches(self, epoch):
        files = list(self.args.files_of_rank)
        random.Random(epoch).shuffle(files)
        batch = []
        for path in files:
            batch.append(self.read(path))
            if len(batch) == self.args.batch_size:
                yield np.stack(batch)
                batch = []

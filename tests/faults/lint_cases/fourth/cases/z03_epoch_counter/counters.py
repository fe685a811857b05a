class EpochCounterWithStopper:
    """Iterates over epochs until the limit or until the metric stalls."""

    def __init__(self, limit, limit_to_stop=5, warmup=2):
        self.limit = limit
        self.limit_to_stop = limit_to_stop
        self.warmup = warmup
        self.current = 0
        self.best = float("inf")
        self.best_epoch = 0
        self.should_stop = False

    def __iter__(self):
        return self

    def __next__(self):
        if self.current >= self.limit or self.should_stop:
            raise StopIteration
        self.current += 1
        return self.current

    def update_metric(self, value):
        if self.current <= self.warmup:
            return
        if value < self.best:
            self.best, self.best_epoch = value, self.current
        self.should_stop = self.current - self.best_epoch >= self.limit_to_stop

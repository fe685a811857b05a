class EpochCounterWithStopper:
    """Iterates over epochs and stops when the metric does not improve any more."""

    def __init__(self, limit, limit_to_stop, limit_warmup, direction="min"):
        self.limit = limit
        self.limit_to_stop = limit_to_stop
        self.limit_warmup = limit_warmup
        self.sign = 1 if direction == "min" else -1
        self.current = 0
        self.best_score = float("inf")
        self.best_limit = 0
        self.should_stop = False

    def __iter__(self):
        return self

    def __next__(self):
        if self.current >= self.limit or self.should_stop:
            raise StopIteration
        self.current += 1
        return self.current

    def update_metric(self, current_metric):
        score = self.sign * current_metric
        if score < self.best_score:
            self.best_score = score
            self.best_limit = self.current
        elif self.current > self.limit_warmup:
            self.should_stop = self.current - self.best_limit >= self.limit_to_stop

import math


class EarlyStoppingCallback:
    """Stops when the monitored metric has not improved for `patience` evaluations."""

    def __init__(self, early_stopping_patience=3, threshold=0.0):
        self.patience = early_stopping_patience
        self.threshold = threshold
        self.counter = 0
        self.best_metric = -math.inf

    def on_evaluate(self, control, metrics):
        value = metrics["eval_f1"]
        if value > self.best_metric + self.threshold:
            self.best_metric = value
            self.counter = 0
        else:
            self.counter += 1
        if self.counter >= self.patience:
            control.should_training_stop = True


class TrainerControl:
    def __init__(self):
        self.should_training_stop = False

from dataclasses import dataclass


@dataclass
class EarlyStopper:
    """Counts checkpoints without improvement of the validation score."""

    enabled: bool = True
    patience: int = 5
    min_steps: int = 0
    signi_round: int = 4
    cur_step: int = 0
    best: float = None
    bad_checkpoints: int = 0

    def step(self):
        self.cur_step += 1

    def validation(self, score):
        score = round(score, self.signi_round)
        if self.best is None or score < self.best:
            self.best = score
            self.bad_checkpoints = 0
        else:
            self.bad_checkpoints += 1

    def is_stop(self):
        if not self.enabled or self.cur_step < self.min_steps:
            return False
        return self.bad_checkpoints >= self.patience

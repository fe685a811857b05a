"""Remote control of a running training job through an append-only command file."""
import json
import pathlib
from dataclasses import dataclass, field
from typing import Iterator


@dataclass
class Inbox:
    path: pathlib.Path
    offset: int = field(default=0, init=False)

    def post(self, command, **body):
        with self.path.open("a") as f:
            f.write(json.dumps({"command": command, **body}) + "\n")

    def drain(self) -> Iterator[dict]:
        if not self.path.exists():
            return
        with self.path.open() as f:
            f.seek(self.offset)
            for line in iter(f.readline, ""):
                yield json.loads(line)
            self.offset = f.tell()


class TrainerCallback:
    def on_fit_start(self, trainer): ...

    def on_train_batch_end(self, trainer, loss): ...

    def on_fit_end(self, trainer): ...


class ProgressReporter(TrainerCallback):
    """Publishes the loss where the graphical interface looks for it."""

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def on_train_batch_end(self, trainer, loss):
        if trainer.is_global_zero:
            with self.path.open("a") as f:
                f.write(json.dumps({"step": trainer.global_step, "loss": loss}) + "\n")

    def on_fit_end(self, trainer):
        if trainer.is_global_zero:
            with self.path.open("a") as f:
                f.write(json.dumps({"event": "fit_end", "step": trainer.global_step}) + "\n")


class TrainingController(TrainerCallback):
    """Executes commands that the interface sends: stop, set_lr."""

    def __init__(self, inbox: Inbox):
        self.inbox = inbox
        self.handlers = {"stop": self._stop, "note": self._note}

    def _stop(self, trainer, message):
        if trainer.global_step >= message.get("after_step", 0):
            print(f"stop requested at step {trainer.global_step}")
            trainer.should_stop = True  # RELATED: taint-source
        else:
            self.inbox.post(**message)

    def _note(self, trainer, message):
        print("note:", message.get("text", ""))

    def on_train_batch_end(self, trainer, loss):
        if trainer.is_global_zero:  # RELATED: guard
            for message in list(self.inbox.drain()):
                self.handlers[message["command"]](trainer, message)
        trainer.barrier()

import json

import zmq
from lightning.pytorch.callbacks import Callback


class TrainingControllerZMQ(Callback):
    """Listens for stop and set-learning-rate commands from the labelling application."""

    def __init__(self, address="tcp://127.0.0.1:9000", topic="", poll_timeout=10):
        super().__init__()
        self.address = address
        self.topic = topic
        self.poll_timeout = poll_timeout
        self.context = None
        self.socket = None

    def on_train_start(self, trainer, pl_module):
        if not trainer.is_global_zero:
            return
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.subscribe(self.topic)
        self.socket.connect(self.address)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.is_global_zero and self.socket.poll(self.poll_timeout, zmq.POLLIN):
            message = json.loads(self.socket.recv_string())
            if message.get("command") == "stop":
                trainer.should_stop = True
        trainer.strategy.barrier()

    def on_train_end(self, trainer, pl_module):
        if self.socket is not None:
            self.socket.close()
            self.context.destroy()

from collections import defaultdict

import torch


class Evaluator:
    def __init__(self, device, loader, network):
        self.device = device
        self.loader = loader
        self.network = network
        self.handlers = defaultdict(list)
        self.state = {}

    def on(self, event, handler):
        self.handlers[event].append(handler)

    def fire(self, event):
        for handler in self.handlers[event]:
            handler(self)

    @torch.no_grad()
    def run(self):
        self.network.eval()
        for volumes, names in self.loader:
            logits = self.network(volumes.to(self.device))
            self.state["output"] = logits.softmax(dim=1).cpu()
            self.state["names"] = names
            self.fire("iteration_completed")
        self.fire("epoch_completed")

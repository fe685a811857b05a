import torch
import torch.distributed as dist

AUX_NAMES = ("load_balancing_loss", "z_loss")


class AuxLossTracker:
    def __init__(self, num_layers, device):
        self.num_layers = num_layers
        self.device = device
        self.values = {}

    def save(self, name, loss, layer):
        if name not in self.values:
            self.values[name] = torch.zeros(self.num_layers, device=self.device)
        self.values[name][layer] += loss.detach()

    def reduce(self, state):
        for name in self.values:
            dist.all_reduce(self.values[name], group=state.pp_group)
            dist.all_reduce(self.values[name], op=dist.ReduceOp.AVG, group=state.dp_group)

    def means(self, num_moe_layers):
        return {name: value.sum().item() / num_moe_layers for name, value in self.values.items()}

    def clear(self):
        for value in self.values.values():
            value.zero_()

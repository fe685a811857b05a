import torch
import torch.nn.functional as F
from torch.autograd import Variable


def release_storage(output):
    """Keeps the autograd graph of a stage output but drops its data."""
    output.data = torch.empty((1,), dtype=output.dtype, device=output.device)


def backward_from(output, grad):
    Variable._execution_engine.run_backward(
        tensors=(output,), grad_tensors=(grad,), keep_graph=False, create_graph=False, inputs=tuple(),
        allow_unreachable=True, accumulate_grad=True)


class PipelineSchedule:
    def __init__(self, stage, link, micro_batches):
        self.stage = stage
        self.link = link
        self.micro_batches = micro_batches

    def _forward(self, micro, labels, requests):
        received = self.link.recv_forward()
        output = self.stage(micro if self.link.first else received)
        if self.link.last:
            return received, F.cross_entropy(output.flatten(0, 1), labels.flatten()) / self.micro_batches
        requests.append(self.link.send_forward(output))
        release_storage(output)
        return received, output

    def _backward(self, received, output):
        grad = self.link.recv_backward()
        if self.link.last:
            output.backward()
        else:
            backward_from(output, grad)
        if received is not None:
            self.link.send_backward(received.grad)

    def run(self, ids, labels):
        inputs, targets = ids.chunk(self.micro_batches), labels.chunk(self.micro_batches)
        requests, pending, total = [], [], 0.0
        for micro, target in zip(inputs, targets):
            pending.append(self._forward(micro, target, requests))
        for received, output in pending:
            if self.link.last:
                total += output.detach()
            self._backward(received, output)
        for request in requests:
            request.wait()
        return total

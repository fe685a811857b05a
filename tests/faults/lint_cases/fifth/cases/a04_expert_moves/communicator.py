import torch.distributed as dist


class ExpertCommunicator:
    """Batches the expert weights that change their owner and sends them in one go."""

    def __init__(self, group):
        self.group = group
        self.pending = []

    def _add(self, op, tensor, owner):
        self.pending.append(dist.P2POp(op, tensor, owner, group=self.group))

    def send(self, tensors, owner):
        for tensor in tensors:
            self._add(dist.isend, tensor.contiguous(), owner)

    def receive(self, buffers, owner):
        for buffer in buffers:
            self._add(dist.irecv, buffer, owner)

    def execute(self):
        if not self.pending:
            return
        for work in dist.batch_isend_irecv(self.pending):
            work.wait()
        self.pending = []

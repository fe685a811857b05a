import torch.distributed as dist


class UpdateWeightFromTensor:
    """Hands the shards of a colocated trainer to the engines on the same GPUs."""

    def __init__(self, model):
        self.model = model
        self.version = 0
        self.engine = None
        self.slot_group = None
        self.leader = None

    def connect_rollout_engines(self, engines):
        rank = dist.get_rank()
        start = 0
        for engine in engines:
            end = start + engine.num_gpus
            if start <= rank < end:
                self.engine = engine
                self.leader = start
                self.slot_group = dist.new_group(ranks=list(range(start, end)), backend="gloo")
            start = end

    def _local_shards(self):
        part = dist.get_rank() - self.leader
        shards = {}
        for name, p in self.model.named_parameters():
            shards[name] = p.detach().flatten().tensor_split(self.engine.num_gpus)[part].cpu()
        return shards

    def update_weights(self):
        self.version += 1
        is_leader = dist.get_rank() == self.leader
        gathered = [None] * self.engine.num_gpus if is_leader else None
        dist.gather_object(self._local_shards(), gathered, dst=self.leader, group=self.slot_group)
        if is_leader:
            self.engine.begin_update(self.version)
            self.engine.load(gathered)
            self.engine.finish_update()
        dist.barrier(group=self.slot_group)

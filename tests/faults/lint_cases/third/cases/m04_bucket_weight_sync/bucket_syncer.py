import torch
import torch.distributed as dist


class BucketWeightSyncer:
    """Sends the actor weights from the training rank to the rollout ranks bucket by bucket."""

    def __init__(self, model, group=None, bucket_numel=1 << 20, skip_prefixes=("value_head",)):
        self.model = model
        self.group = group
        self.bucket_numel = bucket_numel
        state = dict(model.named_parameters())
        self.param_names_need_sync = {
            name for name in state if not any(name.startswith(p) for p in skip_prefixes)
        }

    def iter_buckets(self):
        state = dict(self.model.named_parameters())
        bucket, numel = [], 0
        for name in self.param_names_need_sync:
            param = state[name]
            if bucket and numel + param.numel() > self.bucket_numel:
                yield bucket
                bucket, numel = [], 0
            bucket.append(param)
            numel += param.numel()
        if bucket:
            yield bucket

    @torch.no_grad()
    def sync(self, src=0):
        for bucket in self.iter_buckets():
            flat = torch.cat([p.data.reshape(-1) for p in bucket])
            dist.broadcast(flat, src=src, group=self.group)
            offset = 0
            for p in bucket:
                p.data.copy_(flat[offset : offset + p.numel()].view_as(p))
                offset += p.numel()

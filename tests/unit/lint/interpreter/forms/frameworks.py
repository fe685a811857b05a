"""Guards in frameworks: each bad program with a correct version."""

FORMS = {
    "DeepSpeed": (
        """
        import deepspeed, torch
        class Runner:
            def __init__(self, model):
                self.engine, self.opt, _, _ = deepspeed.initialize(model=model)
            def checkpoint(self, path):
                self.engine.save_checkpoint(path)
            def train(self, data):
                for step, batch in enumerate(data):
                    loss = self.engine(batch)
                    self.engine.backward(loss)
                    self.engine.step()
                    if self.engine.global_rank == 0 and step % 100 == 0:
                        self.checkpoint("x")  # found
        Runner(torch.nn.Linear(1, 1)).train([])
        """,
        """
        import deepspeed, torch
        class Runner:
            def __init__(self, model):
                self.engine, self.opt, _, _ = deepspeed.initialize(model=model)
            def checkpoint(self, path):
                self.engine.save_checkpoint(path)
            def train(self, data):
                for step, batch in enumerate(data):
                    loss = self.engine(batch)
                    self.engine.backward(loss)
                    self.engine.step()
                    if step % 100 == 0:
                        self.checkpoint("x")
                    if self.engine.global_rank == 0:
                        print(loss)
        Runner(torch.nn.Linear(1, 1)).train([])
        """,
    ),
    "Accelerate": (
        """
        from accelerate import Accelerator
        import torch
        class Eval:
            def __init__(self): self.acc = Accelerator()
            def scores(self, x): return self.acc.gather_for_metrics(x)
            def run(self, loader):
                for b in loader:
                    s = b.mean()
                    if self.acc.is_main_process:
                        print(self.scores(s))  # found
        Eval().run([])
        """,
        """
        from accelerate import Accelerator
        import torch
        class Eval:
            def __init__(self): self.acc = Accelerator()
            def scores(self, x): return self.acc.gather_for_metrics(x)
            def run(self, loader):
                for b in loader:
                    s = self.scores(b.mean())
                    if self.acc.is_main_process:
                        print(s)
        Eval().run([])
        """,
    ),
    "Lightning": (
        """
        import lightning as L
        import torch
        class M(L.LightningModule):
            def gathered(self, x):
                return self.all_gather(x)
            def on_validation_epoch_end(self):
                if self.trainer.is_global_zero:
                    print(self.gathered(torch.ones(1)))  # found
        """,
        """
        import lightning as L
        import torch
        class M(L.LightningModule):
            def gathered(self, x):
                return self.all_gather(x)
            def on_validation_epoch_end(self):
                x = self.gathered(torch.ones(1))
                if self.trainer.is_global_zero:
                    print(x)
        """,
    ),
    "logging in Lightning": (
        """
        import lightning as L
        import torch
        class M(L.LightningModule):
            def report(self, v):
                self.log("v", v, sync_dist=True)
            def validation_step(self, batch, i):
                if self.global_rank == 0:
                    self.report(batch.mean())  # found
        """,
        """
        import lightning as L
        import torch
        class M(L.LightningModule):
            def report(self, v):
                self.log("v", v, rank_zero_only=True)
            def validation_step(self, batch, i):
                if self.global_rank == 0:
                    self.report(batch.mean())
        """,
    ),
    "a callback of Transformers": (
        """
        from transformers import TrainerCallback
        import torch, torch.distributed as dist
        def world_mean(x):
            dist.all_reduce(x)
            return x / dist.get_world_size()
        class C(TrainerCallback):
            def on_log(self, args, state, control, logs=None, **kwargs):
                if not state.is_world_process_zero:
                    return  # found
                logs["m"] = world_mean(torch.ones(1))  # found
        """,
        """
        from transformers import TrainerCallback
        import torch, torch.distributed as dist
        def world_mean(x):
            dist.all_reduce(x)
            return x / dist.get_world_size()
        class C(TrainerCallback):
            def on_log(self, args, state, control, logs=None, **kwargs):
                m = world_mean(torch.ones(1))
                if not state.is_world_process_zero:
                    return
                logs["m"] = m
        """,
    ),
    "Megatron": (
        """
        import torch
        from megatron.core import parallel_state as mpu
        def reduce_loss(x):
            torch.distributed.all_reduce(x)
            return x
        def log(x):
            if mpu.get_data_parallel_rank() == 0 and mpu.is_pipeline_last_stage():
                print(reduce_loss(x))  # found
        log(torch.ones(1))
        """,
        """
        import torch
        from megatron.core import parallel_state as mpu
        def reduce_loss(x):
            torch.distributed.all_reduce(x, group=mpu.get_data_parallel_group())
            return x
        def log(x):
            if mpu.is_pipeline_last_stage():
                print(reduce_loss(x))
        log(torch.ones(1))
        """,
    ),
    "torchmetrics": (
        """
        import torchmetrics, torch, torch.distributed as dist
        class Meter:
            def __init__(self): self.acc = torchmetrics.Accuracy(task="binary")
            def value(self): return self.acc.compute().item()
        def end(meter):
            if dist.get_rank() == 0:
                print(meter.value())  # found
        end(Meter())
        """,
        """
        import torchmetrics, torch, torch.distributed as dist
        class Meter:
            def __init__(self): self.acc = torchmetrics.Accuracy(task="binary")
            def value(self): return self.acc.compute().item()
        def end(meter):
            v = meter.value()
            if dist.get_rank() == 0:
                print(v)
        end(Meter())
        """,
    ),
    "a sharded model": (
        """
        import torch, torch.distributed as dist
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        class Saver:
            def __init__(self, model): self.model = model
            def state(self): return {"model": self.model.state_dict()}
        def main():
            model = FSDP(torch.nn.Linear(1, 1))
            saver = Saver(model)
            if dist.get_rank() == 0:
                torch.save(saver.state(), "x.pt")  # found
        main()
        """,
        """
        import torch, torch.distributed as dist
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        class Saver:
            def __init__(self, model): self.model = model
            def state(self): return {"model": self.model.state_dict()}
        def main():
            model = FSDP(torch.nn.Linear(1, 1))
            saver = Saver(model)
            state = saver.state()
            if dist.get_rank() == 0:
                torch.save(state, "x.pt")
        main()
        """,
    ),
    "a registry": (
        """
        import torch, torch.distributed as dist
        HOOKS = {}
        def register(name):
            def deco(fn):
                HOOKS[name] = fn
                return fn
            return deco
        @register("sync")
        def sync(x):
            dist.all_reduce(x)
        def call(name, x):
            HOOKS[name](x)
        def main(x):
            if dist.get_rank() == 0:
                call("sync", x)  # found
        main(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        HOOKS = {}
        def register(name):
            def deco(fn):
                HOOKS[name] = fn
                return fn
            return deco
        @register("sync")
        def sync(x):
            dist.all_reduce(x)
        def call(name, x):
            HOOKS[name](x)
        def main(x):
            call("sync", x)
            if dist.get_rank() == 0:
                print(x)
        main(torch.ones(1))
        """,
    ),
    "one of two strategies": (
        """
        import torch, torch.distributed as dist
        class Strategy:
            def sync(self, x): pass
        class Dist(Strategy):
            def sync(self, x): dist.all_reduce(x)
        def make(multi): return Dist() if multi else Strategy()
        class T:
            def __init__(self, multi):
                self.strategy = make(multi)
                self.rank = dist.get_rank()
            def step(self, x):
                if self.rank < 2:
                    self.strategy.sync(x)  # found
        T(True).step(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        class Strategy:
            def sync(self, x): pass
        class Dist(Strategy):
            def sync(self, x): dist.all_reduce(x)
        def make(multi): return Dist() if multi else Strategy()
        class T:
            def __init__(self, multi):
                self.strategy = make(multi)
                self.rank = dist.get_rank()
            def step(self, x):
                self.strategy.sync(x)
                if self.rank < 2:
                    print(x)
        T(True).step(torch.ones(1))
        """,
    ),
}

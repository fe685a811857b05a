"""Guards through functions, classes, modules and containers, each with a correct version."""

FORMS = {
    "a helper that returns a rank test": (
        """
        import torch, torch.distributed as dist
        def should_log(step):
            if step % 10:
                return False
            if dist.get_rank() != 0:
                return False
            return True
        def metrics(x):
            dist.all_reduce(x)
        def loop(x):
            for step in range(100):
                if not should_log(step):
                    continue  # found
                metrics(x)
        loop(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        def should_log(step):
            if step % 10:
                return False
            return True
        def metrics(x):
            dist.all_reduce(x)
        def loop(x):
            for step in range(100):
                if not should_log(step):
                    continue
                metrics(x)
        loop(torch.ones(1))
        """,
    ),
    "a global variable": (
        """
        import torch, torch.distributed as dist
        _RANK = None
        def init():
            global _RANK
            dist.init_process_group("gloo")
            _RANK = dist.get_rank()
        def save(x):
            if _RANK == 0:
                dist.gather(x, [x])  # found
        init()
        save(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        _WORLD = None
        def init():
            global _WORLD
            dist.init_process_group("gloo")
            _WORLD = dist.get_world_size()
        def save(x):
            if _WORLD > 1:
                dist.all_reduce(x)
        init()
        save(torch.ones(1))
        """,
    ),
    "a field of a configuration": (
        """
        import os, torch, torch.distributed as dist
        from omegaconf import OmegaConf
        def setup(cfg):
            cfg.distributed.rank = int(os.environ["RANK"])
            cfg.distributed.world_size = int(os.environ["WORLD_SIZE"])
            return cfg
        def validate(cfg, x):
            if cfg.distributed.rank == 0:
                dist.all_reduce(x)  # found
        def main(cfg):
            cfg = setup(cfg)
            validate(cfg, torch.ones(1))
        main(OmegaConf.load("a.yaml"))
        """,
        """
        import os, torch, torch.distributed as dist
        from omegaconf import OmegaConf
        def setup(cfg):
            cfg.distributed.rank = int(os.environ["RANK"])
            cfg.distributed.world_size = int(os.environ["WORLD_SIZE"])
            return cfg
        def validate(cfg, x):
            if cfg.distributed.world_size > 1:
                dist.all_reduce(x)
        def main(cfg):
            cfg = setup(cfg)
            validate(cfg, torch.ones(1))
        main(OmegaConf.load("a.yaml"))
        """,
    ),
    "a generator": (
        """
        import torch, torch.distributed as dist
        def shards(files):
            for i, f in enumerate(files):
                if i % dist.get_world_size() == dist.get_rank():
                    yield f
        def run(files, x):
            for f in shards(files):  # found
                dist.all_reduce(x)  # found
        run(["a", "b", "c"], torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        def shards(files):
            for i, f in enumerate(files):
                yield f
        def run(files, x):
            for f in shards(files):
                dist.all_reduce(x)
        run(["a", "b", "c"], torch.ones(1))
        """,
    ),
    "a coroutine": (
        """
        import asyncio, torch, torch.distributed as dist
        async def push(x):
            dist.broadcast(x, 0)
        async def main(x):
            if dist.get_rank() == 0:
                await push(x)  # found
        asyncio.run(main(torch.ones(1)))
        """,
        """
        import asyncio, torch, torch.distributed as dist
        async def push(x):
            dist.broadcast(x, 0)
        async def main(x):
            await push(x)
            if dist.get_rank() == 0:
                print(x)
        asyncio.run(main(torch.ones(1)))
        """,
    ),
    "a finally block": (
        """
        import torch, torch.distributed as dist
        def close(x):
            try:
                if dist.get_rank() == 0:
                    print(x)
            finally:
                if dist.get_rank() == 0:
                    dist.barrier()  # found
        close(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        def close(x):
            try:
                if dist.get_rank() == 0:
                    print(x)
            finally:
                dist.barrier()
        close(torch.ones(1))
        """,
    ),
    "a data source that ends": (
        """
        import torch, torch.distributed as dist
        def train(it, x):
            mine = list(it)[dist.get_rank()::dist.get_world_size()]
            feed = iter(mine)
            while True:
                batch = next(feed, None)
                if batch is None:
                    break  # found
                dist.all_reduce(x)  # found
        train(range(7), torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        def train(it, x):
            mine = list(it)
            feed = iter(mine)
            while True:
                batch = next(feed, None)
                if batch is None:
                    break
                dist.all_reduce(x)
        train(range(7), torch.ones(1))
        """,
    ),
    "a comprehension": (
        """
        import torch, torch.distributed as dist
        def mean(x):
            dist.all_reduce(x)
            return x
        def report(values):
            mine = [v for i, v in enumerate(values) if i % 2 == dist.get_rank()]
            return [mean(v) for v in mine]  # found
        report([torch.ones(1)] * 3)
        """,
        """
        import torch, torch.distributed as dist
        def mean(x):
            dist.all_reduce(x)
            return x
        def report(values):
            return [mean(v) for v in values]
        report([torch.ones(1)] * 3)
        """,
    ),
    "an assertion": (
        """
        import torch, torch.distributed as dist
        def agree(x):
            dist.all_reduce(x)
            return x.item() > 0
        def check(x):
            if dist.get_rank() == 0:
                assert agree(x)  # found
        check(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        def agree(x):
            dist.all_reduce(x)
            return x.item() > 0
        def check(x):
            assert agree(x)
            if dist.get_rank() == 0:
                assert x.item() > 0
        check(torch.ones(1))
        """,
    ),
    "a context manager": (
        """
        from contextlib import contextmanager
        import torch, torch.distributed as dist
        @contextmanager
        def phase(name):
            yield
            dist.barrier()
        def export(model):
            if dist.get_rank() == 0:
                with phase("export"):  # found
                    print(model)
        export(None)
        """,
        """
        from contextlib import contextmanager
        import torch, torch.distributed as dist
        @contextmanager
        def phase(name):
            yield
            dist.barrier()
        def export(model):
            with phase("export"):
                if dist.get_rank() == 0:
                    print(model)
        export(None)
        """,
    ),
    "a mixin and super()": (
        """
        import torch, torch.distributed as dist
        class Base:
            def __init__(self): self.rank = dist.get_rank()
            def log(self, x): dist.all_reduce(x)
        class Mixin:
            def is_main(self): return self.rank == 0
        class T(Mixin, Base):
            def log(self, x):
                if self.is_main():
                    super().log(x)  # found
        T().log(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        class Base:
            def __init__(self): self.rank = dist.get_rank()
            def log(self, x): dist.all_reduce(x)
        class Mixin:
            def is_main(self): return self.rank == 0
        class T(Mixin, Base):
            def log(self, x):
                super().log(x)
                if self.is_main():
                    print(x)
        T().log(torch.ones(1))
        """,
    ),
    "a dict of functions": (
        """
        import torch, torch.distributed as dist
        def full(x): dist.all_reduce(x)
        def none(x): return x
        ACTIONS = {"sync": full, "skip": none}
        def act(x):
            name = "sync" if dist.get_rank() == 0 else "skip"
            ACTIONS[name](x)  # found
        act(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        def full(x): dist.all_reduce(x)
        def none(x): return x
        ACTIONS = {"sync": full, "skip": none}
        def act(x, name):
            ACTIONS[name](x)
            print(dist.get_rank())
        act(torch.ones(1), "sync")
        """,
    ),
    "groups by their members": (
        """
        import torch, torch.distributed as dist
        def groups(size):
            mine = None
            for start in range(0, dist.get_world_size(), size):
                ranks = list(range(start, start + size))
                if dist.get_rank() in ranks:
                    mine = dist.new_group(ranks)  # found
            return mine
        groups(2)
        """,
        """
        import torch, torch.distributed as dist
        def groups(size):
            mine = None
            for start in range(0, dist.get_world_size(), size):
                ranks = list(range(start, start + size))
                group = dist.new_group(ranks)
                if dist.get_rank() in ranks:
                    mine = group
            return mine
        groups(2)
        """,
    ),
    "a pair": (
        """
        import os, torch, torch.distributed as dist
        def info():
            return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        def save(x):
            rank, world = info()
            if rank:
                return  # found
            dist.barrier()  # found
        save(torch.ones(1))
        """,
        """
        import os, torch, torch.distributed as dist
        def info():
            return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        def save(x):
            rank, world = info()
            if world == 1:
                return
            dist.barrier()
        save(torch.ones(1))
        """,
    ),
    "the last step of an epoch": (
        """
        import torch, torch.distributed as dist
        def train(model, data, every):
            loader = data[dist.get_rank()::dist.get_world_size()]
            n = len(loader)
            for i, b in enumerate(loader):  # found
                model(b).sum().backward()
                if (i + 1) % every == 0 or i + 1 == n:  # found
                    for p in model.parameters():
                        dist.all_reduce(p.grad)  # found
        train(torch.nn.Linear(1, 1), torch.ones(7, 1), 4)
        """,
        """
        import torch, torch.distributed as dist
        def train(model, data, every):
            n = len(data) // dist.get_world_size()
            loader = data[dist.get_rank() * n:(dist.get_rank() + 1) * n]
            for i, b in enumerate(loader):
                model(b).sum().backward()
                if (i + 1) % every == 0 or i + 1 == n:
                    for p in model.parameters():
                        dist.all_reduce(p.grad)
        train(torch.nn.Linear(1, 1), torch.ones(7, 1), 4)
        """,
    ),
}

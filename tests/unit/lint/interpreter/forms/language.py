"""Guards in Python's statements and expressions: each bad program with a correct version."""

FORMS = {
    "a property": (
        """
        import torch, torch.distributed as dist
        class Ctx:
            def __init__(self): self._rank = dist.get_rank()
            @property
            def leader(self): return self._rank == 0
        class T:
            def __init__(self): self.ctx = Ctx()
            def reduce(self, x):
                dist.all_reduce(x)
                return x
            def end(self, x):
                if self.ctx.leader:
                    return self.reduce(x)  # found
        t = T(); t.end(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        class Ctx:
            def __init__(self): self._rank = dist.get_rank()
            @property
            def leader(self): return self._rank == 0
        class T:
            def __init__(self): self.ctx = Ctx()
            def reduce(self, x):
                dist.all_reduce(x)
                return x
            def end(self, x):
                y = self.reduce(x)
                if self.ctx.leader:
                    print(y)
        t = T(); t.end(torch.ones(1))
        """,
    ),
    "a decorator": (
        """
        import functools, torch, torch.distributed as dist
        def main_only(fn):
            @functools.wraps(fn)
            def inner(*args, **kwargs):
                if dist.get_rank() != 0:
                    return None
                return fn(*args, **kwargs)
            return inner
        def mean(x):
            dist.all_reduce(x)
            return x / dist.get_world_size()
        @main_only
        def report(x):
            print(mean(x))  # found
        report(torch.ones(1))
        """,
        """
        import functools, torch, torch.distributed as dist
        def main_only(fn):
            @functools.wraps(fn)
            def inner(*args, **kwargs):
                if dist.get_rank() != 0:
                    return None
                return fn(*args, **kwargs)
            return inner
        def mean(x):
            dist.all_reduce(x)
            return x / dist.get_world_size()
        @main_only
        def report(x):
            print(x)
        report(mean(torch.ones(1)))
        """,
    ),
    "a field of a dataclass": (
        """
        from dataclasses import dataclass, field
        import torch, torch.distributed as dist
        @dataclass
        class Env:
            rank: int
            world: int
            @classmethod
            def here(cls): return cls(rank=dist.get_rank(), world=dist.get_world_size())
        def sync(x): dist.broadcast(x, 0)
        def save(env, x):
            if env.rank == 0:
                sync(x)  # found
            torch.save(x, f"a{env.rank}.pt")
        save(Env.here(), torch.ones(1))
        """,
        """
        from dataclasses import dataclass, field
        import torch, torch.distributed as dist
        @dataclass
        class Env:
            rank: int
            world: int
            @classmethod
            def here(cls): return cls(rank=dist.get_rank(), world=dist.get_world_size())
        def sync(x): dist.broadcast(x, 0)
        def save(env, x):
            if env.world > 4:
                sync(x)
            torch.save(x, f"a{env.rank}.pt")
        save(Env.here(), torch.ones(1))
        """,
    ),
    "a closure": (
        """
        import torch, torch.distributed as dist
        def make_logger(rank):
            def log(x, everywhere=False):
                if everywhere or rank == 0:
                    y = x.clone()
                    dist.reduce(y, 0)  # found
                    return y
            return log
        log = make_logger(dist.get_rank())
        log(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        def make_logger(rank):
            def log(x):
                y = x.clone()
                dist.reduce(y, 0)
                if rank == 0:
                    print(y)
            return log
        log = make_logger(dist.get_rank())
        log(torch.ones(1))
        """,
    ),
    "functools.partial": (
        """
        import functools, torch, torch.distributed as dist
        def gather(x, out, group=None):
            dist.all_gather(out, x, group=group)
        collect = functools.partial(gather, group=None)
        def evaluate(is_main, x, out):
            if is_main:
                collect(x, out)  # found
        evaluate(dist.get_rank() == 0, torch.ones(1), [torch.ones(1)])
        """,
        """
        import functools, torch, torch.distributed as dist
        def gather(x, out, group=None):
            dist.all_gather(out, x, group=group)
        collect = functools.partial(gather, group=None)
        def evaluate(is_main, x, out):
            collect(x, out)
            if is_main:
                print(out)
        evaluate(dist.get_rank() == 0, torch.ones(1), [torch.ones(1)])
        """,
    ),
    "a walrus": (
        """
        import torch, torch.distributed as dist
        def step(x):
            if (rank := dist.get_rank()) == 0 and x.sum() > 0:
                dist.all_reduce(x)  # found
            return rank
        step(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        def step(x):
            dist.all_reduce(x)
            if (rank := dist.get_rank()) == 0 and x.sum() > 0:
                print(x)
            return rank
        step(torch.ones(1))
        """,
    ),
    "a conditional expression": (
        """
        import torch, torch.distributed as dist
        def mean(x):
            dist.all_reduce(x)
            return x
        def log(x):
            value = mean(x) if dist.get_rank() == 0 else None  # found
            return value
        log(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        def mean(x):
            dist.all_reduce(x)
            return x
        def log(x):
            m = mean(x)
            value = m if dist.get_rank() == 0 else None
            return value
        log(torch.ones(1))
        """,
    ),
    "a match": (
        """
        import torch, torch.distributed as dist
        def role():
            return "chief" if dist.get_rank() == 0 else "worker"
        def run(x):
            match role():
                case "chief":
                    dist.broadcast(x, 0)  # found
                case _:
                    print("wait")
        run(torch.ones(1))
        """,
        """
        import torch, torch.distributed as dist
        def role():
            return "chief" if dist.get_rank() == 0 else "worker"
        def run(x):
            match role():
                case "chief":
                    print("send")
                    dist.broadcast(x, 0)
                case _:
                    dist.broadcast(x, 0)
        run(torch.ones(1))
        """,
    ),
}

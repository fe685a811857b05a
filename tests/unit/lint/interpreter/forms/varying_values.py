"""Differences other than the rank: each bad program with a correct version."""

FORMS = {
    "a NaN batch": (
        """
        import torch, torch.distributed as dist
        class Guard:
            def bad(self, loss): return not torch.isfinite(loss)
        def train(model, loader, guard):
            for batch in loader:
                loss = model(batch)
                if guard.bad(loss):
                    continue  # found
                loss.backward()
                for p in model.parameters():
                    dist.all_reduce(p.grad)  # found
        train(torch.nn.Linear(1, 1), [], Guard())
        """,
        """
        import torch, torch.distributed as dist
        class Guard:
            def bad(self, loss):
                flag = (~torch.isfinite(loss)).float()
                dist.all_reduce(flag)
                return flag.item() > 0
        def train(model, loader, guard):
            for batch in loader:
                loss = model(batch)
                if guard.bad(loss):
                    continue
                loss.backward()
                for p in model.parameters():
                    dist.all_reduce(p.grad)
        train(torch.nn.Linear(1, 1), [], Guard())
        """,
    ),
    "a time limit": (
        """
        import time, torch, torch.distributed as dist
        class Clock:
            def __init__(self, limit): self.start, self.limit = time.time(), limit
            def over(self): return time.time() - self.start > self.limit
        def train(x, clock):
            for step in range(1000):
                dist.all_reduce(x)
                if clock.over():
                    break  # found
            dist.barrier()
        train(torch.ones(1), Clock(3600))
        """,
        """
        import time, torch, torch.distributed as dist
        class Clock:
            def __init__(self, limit): self.start, self.limit = time.time(), limit
            def over(self):
                flag = torch.tensor(float(time.time() - self.start > self.limit))
                dist.broadcast(flag, 0)
                return bool(flag.item())
        def train(x, clock):
            for step in range(1000):
                dist.all_reduce(x)
                if clock.over():
                    break
            dist.barrier()
        train(torch.ones(1), Clock(3600))
        """,
    ),
    "a signal": (
        """
        import signal, torch, torch.distributed as dist
        STOP = False
        def handler(s, f):
            global STOP
            STOP = True
        signal.signal(signal.SIGTERM, handler)
        def train(x):
            for step in range(1000):
                if STOP:
                    break  # found
                dist.all_reduce(x)  # found
        train(torch.ones(1))
        """,
        """
        import signal, torch, torch.distributed as dist
        STOP = False
        def handler(s, f):
            global STOP
            STOP = True
        signal.signal(signal.SIGTERM, handler)
        def train(x):
            for step in range(1000):
                flag = torch.tensor(float(STOP))
                dist.all_reduce(flag)
                if flag.item():
                    break
                dist.all_reduce(x)
        train(torch.ones(1))
        """,
    ),
    "an early stop": (
        """
        import torch, torch.distributed as dist
        class EarlyStop:
            def __init__(self): self.best, self.bad = 1e9, 0
            def update(self, loss):
                if loss < self.best: self.best, self.bad = loss, 0
                else: self.bad += 1
                return self.bad > 3
        def train(loader, model, stop):
            for epoch in range(10):
                total = 0.0
                for batch in loader:
                    loss = model(batch)
                    loss.backward()
                    dist.all_reduce(model.weight.grad)
                    total += loss.item()
                if dist.get_rank() == 0:
                    done = stop.update(total)
                else:
                    done = False
                if done:
                    break  # found
        train([], torch.nn.Linear(1, 1), EarlyStop())
        """,
        """
        import torch, torch.distributed as dist
        class EarlyStop:
            def __init__(self): self.best, self.bad = 1e9, 0
            def update(self, loss):
                if loss < self.best: self.best, self.bad = loss, 0
                else: self.bad += 1
                return self.bad > 3
        def train(loader, model, stop):
            for epoch in range(10):
                total = 0.0
                for batch in loader:
                    loss = model(batch)
                    loss.backward()
                    dist.all_reduce(model.weight.grad)
                    total += loss.item()
                done = [stop.update(total) if dist.get_rank() == 0 else None]
                dist.broadcast_object_list(done, 0)
                if done[0]:
                    break
        train([], torch.nn.Linear(1, 1), EarlyStop())
        """,
    ),
    "a handler": (
        """
        import torch, torch.distributed as dist
        def step(model, batch):
            loss = model(batch).sum()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
        def train(model, loader):
            for batch in loader:
                try:
                    step(model, batch)
                except torch.cuda.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    dist.barrier()  # found
        train(torch.nn.Linear(1, 1), [])
        """,
        """
        import torch, torch.distributed as dist
        def step(model, batch):
            loss = model(batch).sum()
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
        def train(model, loader):
            for batch in loader:
                try:
                    step(model, batch)
                except torch.cuda.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    raise
        train(torch.nn.Linear(1, 1), [])
        """,
    ),
}

"""Exits, exceptions and iterators in training programs."""

TRAINING = {
    "early stopping on one rank": """
        class Trainer:
            def __init__(self, model, patience):
                self.model = DDP(model)
                self.rank = dist.get_rank()
                self.best = 0.0
                self.bad = 0
                self.patience = patience
            def evaluate(self, loader):
                hits = torch.zeros(1)
                for batch in loader:
                    hits += self.model(batch).sum()
                dist.all_reduce(hits)
                return hits
            def fit(self, loader, epochs):
                for epoch in range(epochs):
                    score = self.evaluate(loader)
                    if self.rank == 0:
                        if score > self.best:
                            self.best = score
                        else:
                            self.bad += 1
                            if self.bad >= self.patience:
                                print("stop")
                                return  # bad found
        """,
    "a checkpoint that one rank cannot load": """
        def load(path, model):
            state = None
            if rank == 0:
                try:
                    state = torch.load(path)
                except Exception:
                    print("no checkpoint")
                    return False  # bad found
            box = [state]
            dist.broadcast_object_list(box, 0)
            model.load_state_dict(box[0])
            return True
        """,
    "a sample of this rank": """
        def train(model, dataset, opt):
            model = DDP(model)
            for i in range(len(dataset)):
                try:
                    x, y = dataset[i + rank]
                except (OSError, ValueError) as e:
                    print("bad sample", i, e)
                    continue  # bad found
                    raise  # good
                loss = model(x).sum()
                loss.backward()
                opt.step()
        """,
    "a check two calls deep": """
        class SkipStep(Exception):
            pass
        def clip(net, limit):
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), limit)
            if not torch.isfinite(norm):
                raise SkipStep()  # bad found
            return norm
        def step(net, batch, opt):
            loss = net(batch).mean()
            loss.backward()
            clip(net, 1.0)  # bad found
            for p in net.parameters():
                dist.all_reduce(p.grad)
            opt.step()
        def main(net, loader, opt):
            for batch in loader:
                try:
                    step(net, batch, opt)  # bad found
                except SkipStep:
                    opt.zero_grad()
        """,
    "exit in the second of two tests": """
        def main():
            args = elsewhere.parse()
            if rank == 0:
                if not os.path.isdir(args.out):
                    os.makedirs(args.out)
                elif not args.force:
                    print("exists")
                    sys.exit(0)  # bad found
                    sys.exit(1)  # good
            dist.barrier()
        main()
        """,
    "an iterator in a class": """
        class Prefetcher:
            def __init__(self, loader):
                self.it = iter(loader)
            def next(self):
                try:
                    return next(self.it)
                except StopIteration:
                    return None
        def train(files, x):
            local = files[rank::world]
            local = files  # good
            pre = Prefetcher(local)
            item = pre.next()
            while item is not None:  # bad found
            while item is not None:  # good
                dist.all_reduce(x)
                item = pre.next()
        """,
    "a return under a lock": """
        def init_once(path, x):
            with elsewhere.FileLock(path):
                if rank != 0:
                    if os.path.exists(path):
                        return None  # bad found
                torch.save(x, path) if rank == 0 else None
            dist.barrier()
        """,
    "retries that fail on one rank": """
        def download(url):
            for attempt in range(3):
                try:
                    elsewhere.fetch(url)
                    return True
                except IOError:
                    time.sleep(1)
            return False
        def main(url):
            if rank == 0:
                if not download(url):
                    return  # bad found
                    raise RuntimeError(url)  # good
            dist.barrier()
        """,
    "a decision in a closure": """
        def train(cfg, x):
            def log(step):
                if rank == 0:
                    print(step)
                    if step == cfg.stop:
                        return True
                return False
            for step in range(100):
                if log(step):
                    print("end")  # good
                    break  # bad found
                dist.all_reduce(x)
        """,
    "a flag of one rank": """
        def fit(model, loader, val, x):
            stop = False
            for epoch in range(10):
                for batch in loader:
                    dist.all_reduce(x)
                if rank == 0:
                    loss = elsewhere.validate(model, val)
                    if loss < 0.1:
                        stop = True
                flag = torch.tensor(int(stop))  # good
                dist.broadcast(flag, 0)  # good
                if flag.item():  # good
                if stop:  # bad
                    break  # found
        """,
    "an exit by the clock": """
        def fit(loader, x, limit):
            start = time.time()
            for batch in loader:
                dist.all_reduce(x)
                if time.time() - start > limit:
                    if rank == 0:
                        print("time")
                    break  # bad found
                    print("late")  # good
        """,
    "a collective in the else of try": """
        def load(lines, x):
            for line in lines:
                try:
                    item = json.loads(line)  # found
                except ValueError:
                    print("bad")
                else:
                    dist.all_reduce(x)  # bad
                    print(item)  # good
                dist.all_reduce(x)  # good
        """,
    "a configuration of this rank": """
        import yaml
        def cfg_of(folder, x):
            try:
                with open(os.path.join(folder, f"rank{rank}.yaml")) as f:
                    cfg = yaml.safe_load(f)
            except FileNotFoundError:
                return {}  # bad found
                cfg = {}  # good
            dist.all_reduce(x)
            return cfg
        """,
    "a loop over tasks that one rank leaves": """
        def work(x, queue):
            while True:
                task = queue.get()
                if task is None:
                    break
                if rank == 0 and task == "stop":
                    break  # bad found
                dist.broadcast(x, 0)
        """,
    "a file that one rank removes": """
        def clean(path, x):
            try:
                if rank == 0:
                    os.unlink(path)  # bad found
                dist.barrier()  # bad
                x = x + 1
            except OSError:
                pass
            dist.barrier()  # good
        """,
    "a generator that ends on rank 1": """
        def gen(n):
            for i in range(n):
                if rank == 1 and i == 3:
                    return  # bad found
                    print(i)  # good
                yield i
        def main(x):
            for i in gen(10):  # found
                dist.all_reduce(x)
        """,
    "memory by its message, others raised again": """
        def run_epoch(model, loader, x):
            for batch in loader:
                try:
                    out = model(batch)
                except RuntimeError as error:
                    if "out of memory" in str(error):
                        print("skip")
                        continue  # bad found
                        raise  # good
                    raise
                dist.all_reduce(x)
        """,
}

"""Exceptions that the program raises, and those of library calls."""

#: Exceptions that the program raises.
RAISES = {
    "a raise that a caller catches": """
        class BadConfig(Exception):
            pass

        def validate(cfg):
            if rank == 0 and cfg.rate < 0:
                raise BadConfig(cfg.rate)  # bad found

        def main(cfg, x):
            try:
                validate(cfg)  # bad found
                validate(cfg)  # good
            except BadConfig as error:
                print(error)
                return  # bad found
                raise  # good
            dist.all_reduce(x)
        """,
    "a raise out of a loop": """
        class Stop(Exception):
            pass

        def train(loader, x):
            try:
                for step, batch in enumerate(loader):
                    if rank == 0 and step > 10:
                        raise Stop  # bad found
                        print("ten")  # good
                    dist.all_reduce(x)
            except Stop:
                print("stopped")
        """,
    "a raise in a handler": """
        def check(batch):
            if torch.isnan(batch).any():
                raise ValueError("nan")

        def train(loader, x):
            for batch in loader:
                try:
                    try:
                        check(batch)  # bad found
                        print(x)  # good
                    except ValueError as error:
                        raise RuntimeError("bad batch") from error
                    dist.all_reduce(x)
                except RuntimeError:
                    print("skipped")
        """,
    "a bare raise in a handler": """
        def check(batch):
            if torch.isnan(batch).any():
                raise ValueError("nan")

        def train(loader, x):
            for batch in loader:
                try:
                    try:
                        check(batch)  # bad found
                        print(x)  # good
                    except ValueError:
                        print(batch)
                        raise
                    dist.all_reduce(x)
                except Exception:
                    print("skipped")
        """,
    "contextlib.suppress": """
        def check(batch):
            if torch.isnan(batch).any():
                raise ValueError("nan")

        def train(loader, x):
            for batch in loader:
                with contextlib.suppress(ValueError):
                    check(batch)  # bad found
                    dist.all_reduce(x)  # bad
                dist.all_reduce(x)  # good
        """,
    "a context manager that suppresses": """
        class Tolerant:
            def __enter__(self):
                return self
            def __exit__(self, kind, value, trace):
                print(value)
                return True  # bad
                return False  # good

        def check(batch):
            if torch.isnan(batch).any():
                raise ValueError("nan")

        def train(loader, x):
            for batch in loader:
                with Tolerant():
                    check(batch)  # bad found
                    check(batch)  # good
                    dist.all_reduce(x)
        """,
    "a raise that the caller of the caller catches": """
        def check(batch):
            if torch.isnan(batch).any():
                raise FloatingPointError("nan")

        def step(batch, x):
            check(batch)  # bad found
            print(x)  # good
            dist.all_reduce(x)

        def train(loader, x):
            for batch in loader:
                try:
                    step(batch, x)
                except FloatingPointError:
                    continue
        """,
    "a handler that leaves the loop": """
        def check(batch):
            if torch.isnan(batch).any():
                raise ValueError("nan")

        def train(loader, x):
            for batch in loader:
                try:
                    check(batch)
                except ValueError:
                    print("bad")
                    break  # bad found
                dist.all_reduce(x)
        """,
    "a handler that leaves below a test": """
        def check(batch):
            if torch.isnan(batch).any():
                raise ValueError("nan")

        def train(loader, x, cfg):
            for batch in loader:
                try:
                    check(batch)
                except ValueError:
                    if cfg.skip:
                        continue  # bad found
                        raise  # good
                    print("bad")
                dist.all_reduce(x)
        """,
    "a flag set in a handler": """
        def train(net, loader, x):
            for batch in loader:
                failed = False
                try:
                    x = net(batch)
                except RuntimeError:
                    failed = True
                if failed:
                    print("failed")  # good
                    continue  # bad found
                dist.all_reduce(x)
        """,
    "a return in finally": """
        def check(batch):
            if torch.isnan(batch).any():
                raise ValueError("nan")

        def step(batch, x):
            try:
                check(batch)  # bad found
                print(x)  # good
                dist.all_reduce(x)
            finally:
                return x

        def train(loader, x):
            for batch in loader:
                x = step(batch, x)
        """,
}

#: Exceptions of library calls.
FAILURES = {
    "parsing a line of this rank": """
        def train(lines, x):
            for line in lines:
                try:
                    record = json.loads(line)
                except ValueError:
                    record = {}  # good
                    continue  # bad found
                dist.all_reduce(x)
        """,
    "parsing before a collective in the block": """
        def train(lines, x):
            for line in lines:
                try:
                    record = json.loads(line)  # bad found
                    dist.all_reduce(x)  # bad
                except json.JSONDecodeError:
                    print(line)
                dist.all_reduce(x)  # good
        """,
    "a file of this rank": """
        def load(folder, x):
            try:
                with open(f"{folder}/part{rank}.json") as handle:
                    x += len(handle.read())
            except OSError:
                return None  # bad found
            dist.all_reduce(x)
            return x
        """,
    "a file of all ranks": """
        def load(folder, x):
            try:
                if rank == 0:  # bad
                    x = torch.load(f"{folder}/last.pt")  # bad found
                x = torch.load(f"{folder}/last.pt")  # good
                dist.broadcast(x, 0)
            except FileNotFoundError:
                print("no checkpoint")
            return x
        """,
    "a directory that one rank makes": """
        def prepare(folder, x):
            try:
                if rank == 0:
                    os.makedirs(folder)  # bad found
                dist.barrier()  # bad
            except OSError as error:
                print(error)
            dist.barrier()  # good
        """,
    "the output of one rank": """
        def report(path, x):
            try:
                if rank == 0:
                    with open(path, "w") as handle:  # found
                        handle.write("done")
                dist.all_reduce(x)  # bad
            except Exception as error:
                print(error)
            dist.all_reduce(x)  # good
        """,
    "memory, and the gradients are reduced by hand": """
        def train(net, loader):
            for batch in loader:
                try:
                    loss = net(batch).sum()
                    loss.backward()
                except torch.cuda.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    continue  # bad found
                for weight in net.parameters():
                    dist.all_reduce(weight.grad)
        """,
    "memory by its message": """
        def train(net, loader):
            for batch in loader:
                try:
                    loss = net(batch).sum()
                    loss.backward()
                except RuntimeError as error:
                    if "out of memory" not in str(error):
                        raise
                    net.zero_grad()
                    continue  # bad found
                for weight in net.parameters():
                    dist.all_reduce(weight.grad)
        """,
    "a step in a function, memory": """
        def step(net, batch):
            loss = net(batch).sum()
            loss.backward()
            for weight in net.parameters():
                dist.all_reduce(weight.grad)

        def train(net, loader):
            for batch in loader:
                try:
                    step(net, batch)  # bad found
                    step(net, batch)  # good
                except torch.cuda.OutOfMemoryError:
                    torch.cuda.empty_cache()
                    raise  # good
        """,
    "an example of the data set": """
        class Lines(torch.utils.data.Dataset):
            def __getitem__(self, at):
                return json.loads(self.lines[at])

        def train(net, data, x):
            for at in torch.utils.data.DistributedSampler(data):
                try:
                    item = data[at]
                    x = net(item)
                except Exception as error:
                    print(error)
                    continue  # bad found
                    raise  # good
                dist.all_reduce(x)
        """,
    "a request of one rank": """
        import requests
        def notify(url, x):
            try:
                if rank == 0:
                    requests.post(url, json={})  # bad found
                dist.all_reduce(x)  # bad
            except Exception:
                print("not sent")
            dist.all_reduce(x)  # good
        """,
    "a retry behind a barrier": """
        def fetch(url, x):
            for attempt in range(3):
                try:
                    dist.barrier()  # bad
                    if rank == 0:
                        torch.hub.download_url_to_file(url, "x")  # bad found
                        torch.hub.download_url_to_file(url, "x")  # good
                    dist.barrier()
                    break
                except OSError:
                    time.sleep(1)
        """,
    "a result that is None after a failure": """
        def load(at):
            try:
                with open(f"part{rank}-{at}.json") as handle:
                    return json.load(handle)
            except (OSError, ValueError):
                return None

        def train(x):
            for at in range(10):
                part = load(at)
                if part is None:
                    print("missing")  # good
                    continue  # bad found
                dist.all_reduce(x)
        """,
}

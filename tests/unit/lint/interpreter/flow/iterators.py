"""Iterators that end earlier on some ranks; and programs without a divergence."""

#: Iterators that end earlier on some ranks.
ITERATORS = {
    "next with StopIteration": """
        def train(files, x):
            local = iter(files[rank::world])
            local = iter(files)  # good
            while True:
                try:
                    file = next(local)
                except StopIteration:
                    break  # bad found
                dist.all_reduce(x)
        """,
    "next in a loop of fixed length": """
        def train(files, x):
            local = iter(files[rank::world])
            local = iter(files)  # good
            for step in range(100):
                try:
                    file = next(local)
                except StopIteration:
                    return  # bad found
                dist.all_reduce(x)
        """,
    "next in a block with the collective": """
        def train(files, x):
            local = iter(files[rank::world])
            local = iter(files)  # good
            try:
                while True:
                    file = next(local)  # bad found
                    file = next(local)  # good
                    dist.all_reduce(x)
            except StopIteration:
                print("end")
        """,
    "next with a default": """
        def train(files, x):
            local = iter(files[rank::world])
            local = iter(files)  # good
            while True:
                file = next(local, None)
                if file is None:
                    break  # bad found
                dist.all_reduce(x)
        """,
    "an iterator that starts again": """
        def train(files, x):
            local = iter(files[rank::world])
            for step in range(100):
                try:
                    file = next(local)
                except StopIteration:
                    break  # bad found
                    local = iter(files[rank::world])  # good
                    file = next(local)  # good
                dist.all_reduce(x)
        """,
    "a loop that starts the iterator again": """
        def train(files, x, cfg):
            local = iter(files[rank::world])
            step = 0
            while step < 100:
                try:
                    file = next(local)
                except StopIteration:
                    local = iter(files[rank::world])  # good
                    continue  # good
                    return  # bad found
                dist.all_reduce(x)
                step += 1
        """,
    "a pop until the list is empty": """
        def train(files, x):
            local = list(files[rank::world])
            local = list(files)  # good
            while local:  # bad found
            while local:  # good
                file = local.pop()
                dist.all_reduce(x)
        """,
    "a pop that raises at the end": """
        def train(files, x):
            local = list(files[rank::world])
            local = list(files)  # good
            while True:
                try:
                    file = local.pop()
                except IndexError:
                    break  # bad found
                dist.all_reduce(x)
        """,
}

#: Programs without a divergence that look like one.
CORRECT = {
    "a handler that ends the job": """
        def main(x):
            try:
                for step in range(10):
                    dist.all_reduce(x)
            except KeyboardInterrupt:
                if rank == 0:
                    print("interrupted")
                sys.exit(1)
        """,
    "a handler that sets a default": """
        def read(path, x):
            try:
                with open(path) as handle:
                    count = len(handle.read())
            except OSError:
                count = 0
            dist.all_reduce(x)
        """,
    "an exception that is raised again after logging on one rank": """
        def train(loader, x):
            try:
                for batch in loader:
                    dist.all_reduce(x)
            except Exception as error:
                if rank == 0:
                    print(error)
                raise
        """,
    "a rank that raises ends the job": """
        def main(cfg, x):
            if rank == 0:
                if not cfg.files:
                    raise ValueError("no files")
            dist.all_reduce(x)
        """,
    "a save that may fail, then a barrier of all": """
        def save(state, path):
            try:
                if rank == 0:
                    torch.save(state, path)
            except OSError as error:
                print(error)
            dist.barrier()
        """,
    "a failure that all agree on": """
        def train(net, loader, x):
            for batch in loader:
                failed = torch.zeros(1)
                try:
                    x = net(batch)
                except RuntimeError:
                    failed += 1
                dist.all_reduce(failed)
                if failed.item():
                    continue
                dist.all_reduce(x)
        """,
    "the teardown": """
        def main(x):
            try:
                dist.all_reduce(x)
            finally:
                dist.destroy_process_group()
        """,
    "one retry loop per rank": """
        def fetch(url, x):
            for attempt in range(3):
                try:
                    elsewhere.get(url)
                    break
                except OSError:
                    time.sleep(1)
            dist.all_reduce(x)
        """,
    "an optional package": """
        def save(state, path):
            try:
                import fancy
                fancy.save(state, path)
            except ImportError:
                torch.save(state, path)
            dist.barrier()
        """,
    "a probe of the environment": """
        def setup(x):
            try:
                count = int(os.environ["COUNT"])
            except (KeyError, ValueError):
                return
            dist.all_reduce(x)
        """,
}

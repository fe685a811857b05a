"""Exits below a second test, in blocks and loops, and ends of the process."""

#: Exits below a second test, in blocks and in loops.
EXITS = {
    "a return below a second test": """
        def end(cfg, x):
            if rank == 0:
                print("end")
                if cfg.dry:
                    return  # bad found
            dist.all_reduce(x)
        """,
    "a return two tests deep, with work after it": """
        def end(cfg, x):
            if rank == 0:
                if cfg.dry:
                    if cfg.quiet:
                        return None  # bad found
                    print("dry")
                print("end")
            y = x + 1
            dist.all_reduce(y)
            return y
        """,
    "a return under a rank test in one side of a uniform test": """
        def prepare(cfg, x):
            if cfg.eval_only:
                print("eval")
            else:
                if rank == 0:
                    print("train")
                    if not cfg.output:
                        return  # bad found
                x = x + 1
            dist.all_reduce(x)
        """,
    "a continue below a second test": """
        def epoch(loader, cfg):
            for step, batch in enumerate(loader):
                if rank == 0:
                    print(step)
                    if step < cfg.warmup:
                        continue  # bad found
                dist.all_reduce(batch)
        """,
    "a break below a second test": """
        def epoch(loader, cfg):
            for step, batch in enumerate(loader):
                dist.all_reduce(batch)
                if rank == 0:
                    if step > cfg.limit:
                        break  # bad found
        """,
    "a break in the second of two tests": """
        def epoch(loader, cfg):
            for step, batch in enumerate(loader):
                dist.all_reduce(batch)
                if step > cfg.limit:
                    if rank == 0:
                        print("limit reached")
                        break  # bad found
        """,
    "a return from a loop without collectives": """
        def check(files, x):
            for file in files:
                if rank == 0 and not file.size:
                    print("empty", file)
                    return  # bad found
                    break  # good
            dist.barrier()
        """,
    "a return from two loops": """
        def check(folders, x):
            for folder in folders:
                for file in folder:
                    if rank == 0 and not file.size:
                        return  # bad found
                        break  # good
            dist.all_reduce(x)
        """,
    "a break out of an inner loop": """
        def train(loader, x):
            for epoch in range(3):
                for batch in loader:
                    x = x + batch
                    if rank == 0 and epoch == 2:
                        break
                if rank == 0 and x.ndim:  # bad
                    break  # bad found
                dist.all_reduce(x)
        """,
    "the else of a loop": """
        def search(items, x):
            for item in items[rank::world]:
                if item.owner == rank:
                    break  # found
            else:
                dist.all_reduce(x)  # bad found
                x = x + 1  # good
        """,
    "a return in try with finally": """
        def save(path, state):
            handle = elsewhere.lock(path)
            try:
                if rank != 0:
                    return  # bad found
                torch.save(state, path)  # bad
                if rank == 0:  # good
                    torch.save(state, path)  # good
            finally:
                handle.close()
            dist.barrier()
        """,
    "a break in try": """
        def train(loader, x):
            for step, batch in enumerate(loader):
                try:
                    x = x + batch
                    if rank == 0 and step > 100:
                        print("enough")
                        break  # bad found
                finally:
                    print(step)
                dist.all_reduce(x)
        """,
    "a continue in try": """
        def train(loader, x):
            for step, batch in enumerate(loader):
                try:
                    if torch.isnan(batch).any():
                        print("skipped")  # good
                        continue  # bad found
                    x = x + batch
                except KeyError:
                    raise
                dist.all_reduce(x)
        """,
    "a return in with": """
        def evaluate(model, batch, cfg):
            with torch.no_grad():
                out = model(batch)
                if rank == 0:
                    print(out)
                    if cfg.once:
                        return out  # bad found
            dist.all_reduce(out)
            return out
        """,
    "a return in a case": """
        def work(x):
            match rank:
                case 0:
                    print("first")
                    return  # bad found
                case _:
                    pass
            dist.all_reduce(x)
        """,
    "a while loop that one rank leaves": """
        def serve(cfg, x):
            while True:
                if rank == 0:
                    command = input()
                    if command == "quit":
                        break  # bad found
                dist.all_reduce(x)
                if cfg.done:
                    break
        """,
    "a while loop over the local share": """
        def process(files, x):
            pending = len(files[rank::world])
            pending = len(files)  # good
            while True:
                if pending == 0:
                    break  # bad found
                dist.all_reduce(x)
                pending -= 1
        """,
    "a decision in a helper": """
        def stops(step):
            if rank != 0:
                return False
            return step > elsewhere.limit()

        def train(x):
            for step in range(100):
                if stops(step):
                    print(step)  # good
                    break  # bad found
                dist.all_reduce(x)
        """,
    "a generator that ends early on one rank": """
        def batches(loader):
            for step, batch in enumerate(loader):
                if rank == 0 and step == 5:
                    return  # bad found
                    print("five")  # good
                yield batch

        def train(loader):
            for batch in batches(loader):  # bad found
            for batch in batches(loader):  # good
                dist.all_reduce(batch)
        """,
    "a helper that returns early is no exit": """
        def log(x, cfg):
            if rank != 0:
                return
            if cfg.dry:
                return
            print(x)

        def train(x, cfg):
            log(x, cfg)
            if rank == 0:
                log(x, cfg)
                if cfg.dry:
                    return  # bad found
            dist.all_reduce(x)
        """,
    "a return before a collective under a uniform test": """
        def end(cfg, x):
            if rank == 0:
                if cfg.dry:
                    return  # bad found
                print("end")
            if cfg.sync:
                dist.all_reduce(x)
        """,
    "both sides leave": """
        def end(x, cfg):
            if rank == 0:
                if cfg.dry:
                    return  # bad found
                    print("dry")  # good
                dist.all_reduce(x)
                return
            dist.all_reduce(x)
        """,
}

#: Ends of the process.
PROCESS_EXITS = {
    "sys.exit on one rank": """
        def check(cfg, x):
            if rank == 0 and not cfg.files:
                sys.exit()  # bad found
                sys.exit(1)  # good
            dist.all_reduce(x)
        """,
    "exit with status zero below a second test": """
        def check(cfg, x):
            if rank == 0:
                if cfg.only_check:
                    exit(0)  # bad found
            dist.all_reduce(x)
        """,
    "sys.exit in a helper": """
        def check(cfg):
            if rank == 0 and cfg.only_check:
                print("checked")
                sys.exit(0)  # bad found

        def main(cfg, x):
            check(cfg)  # bad found
            check(cfg)  # good
            dist.all_reduce(x)
        """,
    "os._exit after the work of other ranks": """
        def main(x):
            if rank != 0:
                os._exit(0)  # bad found
            dist.barrier()
        """,
    "sys.exit after the last collective": """
        def main(x, cfg):
            if rank == 0 and cfg.dry:  # bad
                sys.exit(0)  # bad found
            dist.all_reduce(x)
            if rank == 0:
                sys.exit(0)
            print(x)
        """,
}

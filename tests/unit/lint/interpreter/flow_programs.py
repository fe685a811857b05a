"""Programs whose ranks leave a common path: one text for the broken and the corrected version.

Lines that end in ``# bad`` are in the broken version only, those in ``# good`` in the corrected one.
In the broken version a line with ``# found`` must be reported.
"""

HEAD = """\
import contextlib, itertools, json, os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import elsewhere
rank = dist.get_rank()
world = dist.get_world_size()
"""

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

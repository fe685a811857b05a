"""A divergence is shown only if the other ranks cannot enter the collective elsewhere."""

import textwrap

import pytest

from holdfast.lint.options import LintOptions
from holdfast.lint.run import lint_paths

HEAD = """\
import contextlib, queue, random, signal, threading, time
import torch
import torch.distributed as dist
import elsewhere

rank = dist.get_rank()
"""
#: Correct programs, of which lines with ``# not`` are left out, and the line that is then reported.
PROGRAMS = {
    "the rank asks again in an endless loop": """
        def serve(model):
            while True:
                if rank == 0:
                    text = input()
                    if not text:
                        continue
                    box = [text]
                else:
                    box = [None]
                dist.broadcast_object_list(box)
                if box[0] == "stop":
                    break
                dist.barrier()
                if rank == 0 and not box[0]:  # bad
                    continue  # bad found
                model(box[0])
                dist.all_reduce(model.count)
        """,
    "a thread of the first rank enters it": """
        requests = queue.Queue()

        def batches():
            batch = []
            while True:
                batch.append(requests.get())
                if len(batch) > 3:
                    print(batch)
                    dist.all_gather_object(batch, 0)  # good

        def worker(app):
            if rank == 0:
                threading.Thread(target=batches, daemon=True).start()
                app.run()
            else:
                while True:
                    box = [None]
                    dist.all_gather_object(box, rank)  # bad found
                    dist.all_gather_object(box, rank)  # good
        """,
    "workers that receive in an endless loop": """
        class Server:
            def receive(self):
                while True:
                    command = torch.zeros(1)
                    dist.barrier()
                    dist.broadcast(command, 0)
                    self.step(command)

            def run(self, service):
                if rank == 0:
                    service.bind(self.request)
                    service.serve()
                elif self.once:  # bad
                    dist.broadcast(torch.zeros(1), 0)  # bad found
                elif not self.dry:
                    print("worker")
                    self.receive()  # good

            def request(self, value):
                dist.broadcast(value, 0)
        """,
    "a barrier for the ranks that a test above excludes": """
        def load(split):
            if rank not in (-1, 0) and split == "train":  # good
                dist.barrier()  # good
            if split == "train":  # bad
                dist.barrier()  # bad
            data = elsewhere.read(split)
            if rank in (-1, 0) and split == "train":  # good
                dist.barrier()  # good
            return data

        def main(args):
            if args.evaluate and rank in (-1, 0):
                load(args.split)  # found
        """,
    "a block that suppresses no exception": """
        def train(model, batches):
            with contextlib.suppress():  # good
                for batch in batches:  # good
                    model(batch)  # good
                    dist.all_reduce(batch)  # good
            with contextlib.suppress(RuntimeError):  # bad
                for batch in batches:  # bad
                    if batch.isnan().any():  # bad
                        raise RuntimeError  # bad
                    dist.all_reduce(batch)  # bad
            dist.barrier()
        """,
    "both sides gather in loops of their own": """
        def send(model):
            for part in model.parts():
                for tensor in part.tensors():
                    dist.gather(tensor, None)  # found

        def receive(model, whole):
            for name, tensor in model.named():
                if tensor.ndim > 1:
                    print(name)
                    dist.gather(tensor, whole[name])  # good

        def merge(model, whole):
            if rank == 0:
                receive(model, whole)
            else:
                send(model)  # bad found
                send(model)  # good
        """,
    "groups that all ranks made before": """
        GROUP = None

        def make(size):
            global GROUP
            GROUP = dist.new_group(list(range(size)))

        def load(size):
            if not elsewhere.is_initialized(GROUP):
                make(size)

        def main(size):
            make(size)  # good
            if rank == 0:
                load(size)  # bad found
                load(size)  # good
        """,
    "an exit under the opposite of the collective's test": """
        def generate(model, tokens, synced):
            while True:
                if synced:
                    dist.all_reduce(tokens)
                open_ones = torch.isnan(model(tokens))
                if open_ones.any():
                    if not synced:  # good
                        break  # good
                    break  # bad found
        """,
    "an answer that both sides of a broadcast hold": """
        def serve(model):
            while True:
                stop = False
                if rank == 0:
                    stop = input() == "stop"
                    dist.broadcast_object_list([stop])  # good
                else:
                    box = [stop]
                    dist.broadcast_object_list(box)  # good
                    stop, = box  # good
                    print(box)
                if stop:
                    return  # bad found
                dist.barrier()
        """,
    "an object that only another choice leaves out on some ranks": """
        class Dense:
            def index(self):
                dist.barrier()

        class Sparse:
            def index(self):
                pass

        class Retriever:
            def __init__(self, method):
                if method == "dense":  # good
                    self.inner = Dense()  # good
                elif rank == 0:  # good
                    self.inner = Sparse()  # good
                if rank == 0:  # bad
                    self.inner = Dense()  # bad
                else:
                    self.inner = None

            def index(self):
                if self.inner is not None:
                    self.inner.index()  # bad found
                    self.inner.index()  # good
        """,
    "a set that is one of two possible collections": """
        def names(model, known):
            if known:  # good
                return sorted(model)  # good
            return {str(name) for name in model}

        def reduce(model, known):
            for name in names(model, known):
                dist.all_reduce(model[name])  # bad
                dist.all_reduce(model[name])  # good
        """,
    "a path with the time in its name": """
        def save(args, loss):
            args.folder = f"{args.folder}/{time.time()}"
            if args.folder and loss:  # good
                dist.barrier()  # good
            if rank == 0:  # bad
                dist.barrier()  # bad found
        """,
    "random numbers of ranks with one seed": """
        def seed_all(seed):
            random.seed(seed)  # good
            random.seed(seed + rank)  # bad

        def train(batches):
            seed_all(3)
            for batch in batches:
                if random.random() < 0.5:
                    dist.all_reduce(batch)  # found
        """,
    "a future that is done on some ranks": """
        def wait(future, blocking):
            if blocking:  # good
                future.result()  # good
                dist.barrier()  # good
            if blocking or future.done():  # bad
                dist.barrier()  # bad found
        """,
    "a flag of the module that a signal sets": """
        flag = dict(signalled=False)

        def on_signal(number, frame):
            flag["signalled"] = True

        def save():
            dist.barrier()

        def main(batches):
            signal.signal(signal.SIGUSR2, on_signal)
            for batch in batches:
                dist.all_reduce(batch)
                if flag["signalled"]:  # bad
                    save()  # bad found

        if __name__ == "__main__":
            main([])
        """,
    "elements that a mask selects": """
        def entropy(values, mask):
            chosen = values[mask.bool()]
            if chosen.numel() == 0:  # bad
                return None  # bad found
            size = torch.tensor([chosen.numel()])
            dist.all_reduce(size, op=dist.ReduceOp.MAX)
            return size
        """,
    "a constant rank of a single process": """
        @contextlib.contextmanager
        def first(local_rank):
            if local_rank not in [-1, 0]:
                dist.barrier()
            yield
            if local_rank == 0:
                dist.barrier()

        def loader(path, local_rank=-1):
            with first(local_rank):
                return open(path)

        def main():
            if rank in [-1, 0]:
                loader("checked")  # good
                loader("checked", rank)  # bad found
            loader("all", rank)  # good
        """,
    "a decision that rank 0 sends in a list": """
        def main(stopper, batches):
            for batch in batches:
                if rank in {-1, 0}:
                    stop = stopper(batch)
                if rank != -1:  # good
                    box = [stop if rank == 0 else None]  # good
                    dist.broadcast_object_list(box, 0)  # good
                    if rank != 0:  # good
                        stop = box[0]  # good
                if stop:
                    break  # found
                dist.barrier()
        """,
}


def version(name, dropped):
    """Return one version of a program, without the lines of the other one."""
    lines = textwrap.dedent(PROGRAMS[name]).split("\n")
    return HEAD + "\n".join(line for line in lines if f"# {dropped}" not in line)


def reported_lines(folder, text, *, strict=False):
    """Return the lines with findings above advice; with ``strict``, with any."""
    path = folder / "program.py"
    path.write_text(text)
    return {
        claim.finding.subject.line
        for claim in lint_paths([path], LintOptions(strict=strict)).findings
        if strict or claim.finding.level != "note"
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_correct_program_has_no_finding(name, tmp_path):
    assert reported_lines(tmp_path, version(name, "bad")) == set()


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_broken_version_is_found(name, tmp_path):
    text = version(name, "good")
    marked = {number for number, line in enumerate(text.split("\n"), 1) if "found" in line}
    found = reported_lines(tmp_path, text)
    assert found & marked if marked else found


def test_what_is_not_proved_is_shown_with_strict(tmp_path):
    text = version("both sides gather in loops of their own", "bad")
    assert reported_lines(tmp_path, text, strict=True)

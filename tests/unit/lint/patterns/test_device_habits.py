"""Tensors that all ranks put on the first GPU, or that a collective of GPUs finds elsewhere."""

import pytest

from tests.unit.lint.programs import program_from_sources

START = (
    "import os, torch\nimport torch.distributed as dist\n"
    "def setup():\n    dist.init_process_group({backend})\n{selects}"
)
SELECTS = "    torch.cuda.set_device(int(os.environ['LOCAL_RANK']))\n"
HEAD = (
    "import os, torch\nimport torch.distributed as dist\nimport torch.multiprocessing as mp\n"
    "from safetensors.torch import load_file\nfrom start import setup\n"
)


def habits(text, backend="'nccl'", selects=SELECTS):
    start = START.format(backend=backend, selects=selects)
    files = {"train": ("train.py", HEAD + text), "start": ("start.py", start)}
    return [each.kind for each in program_from_sources(files).analyze() if "habit-" in each.kind]


@pytest.mark.parametrize(
    ("load", "count"),
    [
        ("torch.load(path, map_location='cuda:0')", 1),
        ("torch.load(path, torch.device('cuda', 0))", 1),
        ("load_file(path, device='cuda')", 1),
        ("load_file(path, device='cpu')", 0),
        ("torch.load(path, map_location='cuda')", 0),
        ("torch.load(path, map_location='cpu')", 0),
        ("torch.load(path, map_location=f'cuda:{rank}')", 0),
        ("torch.load(path)", 0),
    ],
)
def test_loads_onto_the_first_gpu(load, count):
    text = f"def restore(net, path, rank):\n    net.load_state_dict({load})\n"
    assert len(habits(text)) == count
    guarded = f"def restore(net, path, rank):\n    if rank == 0:\n        return {load}\n"
    assert habits(guarded) == []


def test_the_device_of_a_load_in_a_variable():
    text = "def restore(path):\n    device = {}\n    return torch.load(path, map_location=device)\n"
    assert len(habits(text.format("torch.device('cuda:0')"))) == 1
    assert habits(text.format("torch.device('cuda', int(os.environ['LOCAL_RANK']))")) == []


def test_the_state_of_an_optimizer_returns_to_where_it_was_saved_from():
    text = (
        "def resume(net, optimizer, path, rank):\n    state = torch.load({})\n"
        "    net.load_state_dict(state['net'])\n    {}.load_state_dict(state['optimizer'])\n"
    )
    assert len(habits(text.format("path", "optimizer"))) == 1
    assert habits(text.format("path", "net.head")) == []
    assert habits(text.format("f'{path}.{rank}'", "optimizer")) == []


@pytest.mark.parametrize(
    ("tensor", "backend", "count"),
    [
        ("torch.tensor(total)", "'nccl'", 1),
        ("torch.tensor(total)", "backend='nccl', timeout=limit", 1),
        ("torch.zeros(3)", "'nccl'", 1),
        ("torch.zeros(3, device='cuda')", "'nccl'", 0),
        ("torch.tensor(total).cuda()", "'nccl'", 0),
        ("torch.tensor(total)", "'gloo'", 0),
        ("torch.tensor(total)", "'cpu:gloo,cuda:nccl'", 0),
        ("torch.tensor(total)", "'nccl' if torch.cuda.is_available() else 'gloo'", 0),
        ("torch.as_tensor(total)", "'nccl'", 0),
    ],
)
def test_a_tensor_on_the_cpu_for_nccl(tensor, backend, count):
    text = f"def mean(total):\n    value = {tensor}\n    dist.all_reduce(value)\n    return value\n"
    assert len(habits(text, backend)) == count


def test_a_tensor_that_is_moved_later():
    text = (
        "def mean(total, where):\n    value = torch.tensor(total)\n{}    dist.all_reduce(value)\n"
    )
    assert len(habits(text.format(""))) == 1
    assert habits(text.format("    value = value.to(where)\n")) == []
    assert habits(text.format("    if where:\n        value = value.to(where)\n")) == []
    assert habits("torch.set_default_device('cuda')\n" + text.format("")) == []


@pytest.mark.parametrize(
    ("first", "count"),
    [
        ("net = net.cuda()", 1),
        ("x = torch.zeros(4, device='cuda')", 1),
        ("net.to('cuda')", 1),
        ("net.to('cpu')", 0),
        ("if debug:\n        net.cuda()", 0),
        ("names = [torch.cuda.get_device_name(0)]", 0),
    ],
)
@pytest.mark.parametrize("select", ["setup()", "torch.cuda.set_device(rank)"])
def test_a_gpu_that_is_used_before_it_is_selected(first, select, count):
    text = "def main(net, debug, rank=None):\n    {}\n    {}\n"
    assert len(habits(text.format(first, select))) == count
    assert habits(text.format(select, first)) == []


@pytest.mark.parametrize(
    ("start", "count"),
    [
        ("mp.Process(target=work, args=(1,)).start()", 1),
        ("mp.start_processes(work, args=(1,), nprocs=2, start_method='fork')", 1),
        ("mp.start_processes(work, args=(1,), nprocs=2)", 0),
        ("mp.spawn(work, nprocs=2)", 0),
        ("mp.Process(target=read, args=(1,)).start()", 0),
    ],
)
def test_a_process_that_is_forked_after_cuda_was_used(start, count):
    text = (
        "def read(index):\n    print(index)\n"
        "def work(index, world):\n    x = torch.ones(1).cuda()\n"
        "def main():\n    {}\n    {}\n"
    )
    assert len(habits(text.format("x = torch.ones(1).cuda()", start))) == count
    assert habits(text.format("n = torch.cuda.device_count()", start)) == []
    spawned = "mp.set_start_method('spawn')\n" + text.format("x = torch.ones(1).cuda()", start)
    assert habits(spawned) == []


@pytest.mark.parametrize(
    ("index", "count"), [("dist.get_rank()", 1), ("int(os.environ['LOCAL_RANK'])", 0)]
)
def test_the_only_gpu_of_ddp(index, count):
    text = (
        "def wrap(net):\n    index = {}\n"
        "    return torch.nn.parallel.DistributedDataParallel(net, device_ids=[index])\n"
    )
    assert len(habits(text.format(index))) == count


OWN_FILE = """
class Trainer:
    def load(self, path):
        state = torch.load(path)
        self.net.load_state_dict({loaded})
    def save(self, path):
        torch.save({saved}, path)
"""


@pytest.mark.parametrize(
    ("loaded", "saved", "count"),
    [
        ("state['net']", "{'net': self.net.state_dict()}", 1),
        ("state['net']", "{'net': self.net.cpu().state_dict()}", 0),
        ("state['net']", "{'epoch': self.epoch}", 0),
    ],
)
def test_a_checkpoint_that_the_same_file_saves(loaded, saved, count):
    assert len(habits(OWN_FILE.format(loaded=loaded, saved=saved))) == count

"""What shows that several ranks change one path, and what shows that they do not."""

from __future__ import annotations

import textwrap

import pytest

from holdfast.lint.options import ALL_RULES
from holdfast.lint.run import lint_paths

RULES = {"path-race", "written-by-all-ranks", "name-by-process-hash"}
HEAD = "import os, shutil, time, uuid\nimport numpy as np\nimport torch\nimport torch.distributed as dist\n"
LIBRARY = """
def download():
    if dist.is_initialized():
        dist.barrier()

def start():
    dist.init_process_group("gloo")
"""
SCRIPT = """
from library import {name}

def main(args):
    {name}()
    with open(os.path.join(args.output_dir, "page.html"), "w") as file:
        file.write("")

if __name__ == "__main__":
    main(parse())
"""
#: name: (files on which a rule reports, the change after which none does)
CASES = {
    "a script that forms a group, and one that calls a function which waits if there is one": (
        {"library": LIBRARY, "script": SCRIPT.format(name="start")},
        ("script", "start", "download"),
    ),
    "a function that a script calls, and one that nothing calls beside others": (
        {
            "tools": """
            def prepare(folder, rank):
                dist.barrier()
                if not os.path.exists(folder):
                    os.makedirs(folder)

            def count(rows):
                return len(rows)
            """,
            "script": "from tools import count, prepare\ncount([])\nprepare('out', 0)",
        },
        ("script", "prepare", "count"),
    ),
    "a variable rank, and a test of one that the file does not bind": (
        {
            "script": """
            def main(config, rank):
                if config.verbose and rank == 0:
                    print(config)
                with open(config.output_path, "w") as file:
                    file.write("")
            """
        },
        ("script", "config, rank", "config"),
    ),
    "an early return within a test of another kind": (
        {
            "script": """
            def statistics(config, total):
                if dist.is_initialized():
                    dist.all_reduce(total)
                    if dist.get_rank() != 0:
                        print(total)
                np.savez(config.save_path, total=total)
            """
        },
        ("script", "print(total)", "return"),
    ),
    "a name from the data of each rank": (
        {
            "script": """
            def latent_path(image, root):
                return os.path.join(root, image[: image.rfind(".")] + ".npy")

            def main(config, loader):
                dist.init_process_group("nccl")
                for images in loader:
                    for image in images:
                        np.save(latent_path(config.name, config.root), image)
            """
        },
        ("script", "latent_path(config.name", "latent_path(image"),
    ),
    "a name that callers choose": (
        {
            "script": """
            def save_state(folder, name, state):
                dist.barrier()
                torch.save(state, os.path.join(folder, "state.pt"))
            """
        },
        ("script", '"state.pt"', "name"),
    ),
    "a folder to which the caller has saved": (
        {
            "script": """
            class Model(Trainer):
                def card(self, path):
                    dist.barrier()
                    if not os.path.exists(path):
                        os.makedirs(path)

                def save(self, path):
                    self.model.freeze(path)
                    self.card(path)
            """
        },
        ("script", "freeze", "save_pretrained"),
    ),
    "a function of the same name in another file": (
        {
            "tools": """
            def main(folder):
                if not os.path.exists(folder):
                    os.makedirs(folder)
            """,
            "script": """
            from tools import main

            def run(folder):
                dist.barrier()
                main(folder)
            """,
        },
        ("script", "from tools import main", "def main(folder):\n    print(folder)"),
    ),
    "a setting that holds a test of the rank": (
        {
            "script": """
            def main(args):
                dist.init_process_group("nccl")
                args.saves = args.logs and is_any(args)
                if args.saves:
                    torch.save({}, os.path.join(args.out, "last.pt"))
            """
        },
        ("script", "is_any", "is_master"),
    ),
    "a hook that Lightning calls on one rank": (
        {
            "script": """
            class Data(LightningDataModule):
                def setup(self):
                    dist.barrier()
                    torch.save({}, os.path.join(self.out, "last.pt"))
            """
        },
        ("script", "def setup", "def prepare_data"),
    ),
    "a lock": (
        {
            "script": """
            import fcntl

            def prepare(folder, file):
                dist.barrier()
                print(file)
                if not os.path.exists(folder):
                    os.makedirs(folder)
            """
        },
        ("script", "print(file)", "fcntl.flock(file, fcntl.LOCK_EX)"),
    ),
    "a time in the name of a folder, and of a log file": (
        {
            "script": """
            def main(config):
                dist.init_process_group("nccl")
                timestamp = time.strftime("%H%M%S", time.localtime())
                run_dir = os.path.join(config.root, timestamp)
                print(run_dir)
            """
        },
        ("script", "run_dir", "log_file"),
    ),
}


def found(folder, files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(text))
    findings = lint_paths([folder], ALL_RULES).findings
    return {reported.rule for reported in findings} & RULES


@pytest.mark.parametrize("name", CASES)
def test_files_are_reported_only_with_evidence(tmp_path, name):
    files, (changed, old, new) = CASES[name]
    assert found(tmp_path, files)
    other = textwrap.dedent(files[changed]).replace(old, new)
    assert not found(tmp_path, files | {changed: other})


#: Paths that each rank has for itself, through functions, attributes and loops; and what shares it.
OWN = {
    "a function that returns a random name": (
        """
        def name(folder):
            return os.path.join(folder, str(uuid.uuid4()) + ".pt")

        def main():
            dist.init_process_group("nccl")
            torch.save({}, name("out"))

        main()
        """,
        ("uuid.uuid4()", "'state'"),
    ),
    "an attribute of another object": (
        """
        class Config:
            def __init__(self, folder):
                self.out = f"{folder}/{dist.get_rank()}"

        def main():
            dist.init_process_group("nccl")
            config = Config("out")
            with open(os.path.join(config.out, "a.json"), "w") as file:
                file.write("x")

        main()
        """,
        ("dist.get_rank()", "0"),
    ),
    "an option that is set again": (
        """
        def main(args):
            dist.init_process_group("nccl")
            args.output_dir = os.path.join(args.output_dir, f"worker{dist.get_rank()}")
            with open(os.path.join(args.output_dir, "a.json"), "w") as file:
                file.write("x")

        main(parse())
        """,
        ("worker{dist.get_rank()}", "results"),
    ),
    "a property": (
        """
        class Writer:
            @property
            def path(self):
                return os.path.join("out", f"{dist.get_rank()}.txt")

            def write(self):
                dist.barrier()
                with open(self.path, "w") as file:
                    file.write("x")

        Writer().write()
        """,
        ("{dist.get_rank()}", "results"),
    ),
    "a share of the numbers": (
        """
        def main(args):
            dist.init_process_group("nccl")
            first = dist.get_rank()
            for number in range(first, 100, dist.get_world_size()):
                torch.save({}, os.path.join(args.out, f"{number}.pt"))

        main(parse())
        """,
        ("range(first, 100, dist.get_world_size())", "range(100)"),
    ),
    "a test of the rank in an attribute of a neutral name": (
        """
        class Metrics:
            def __init__(self, folder):
                self.enabled = dist.get_rank() == 0
                self.folder = folder

            def add(self):
                if self.enabled:
                    self.flush()

            def flush(self):
                with open(os.path.join(self.folder, "a.json"), "w") as file:
                    file.write("x")

        dist.init_process_group("nccl")
        Metrics("out").add()
        """,
        ("dist.get_rank() == 0", "True"),
    ),
    "the elements of a distributed sampler": (
        """
        def main(args, data):
            dist.init_process_group("nccl")
            for number in torch.utils.data.DistributedSampler(data):
                torch.save(data[number], os.path.join(args.out, f"{number}.pt"))

        main(parse(), load())
        """,
        ("torch.utils.data.DistributedSampler(data)", "range(9)"),
    ),
    "exist_ok by position": (
        """
        def main(args):
            dist.init_process_group("nccl")
            os.makedirs(args.out_dir, 0o755, True)

        main(parse())
        """,
        (", 0o755, True", ""),
    ),
    "a copy that may exist": (
        """
        def main(args):
            dist.init_process_group("nccl")
            if not os.path.exists(args.copy):
                shutil.copytree(args.source, args.copy, dirs_exist_ok=True)

        main(parse())
        """,
        (", dirs_exist_ok=True", ""),
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_a_path_of_each_rank_is_fine(tmp_path, name):
    text, (own, shared) = OWN[name]
    assert not found(tmp_path, {"script": text})
    assert found(tmp_path, {"script": text.replace(own, shared)})

"""What shows that several ranks change one path, and what shows that they do not."""

from __future__ import annotations

import textwrap

import pytest

from holdfast.lint.options import ALL_RULES
from holdfast.lint.run import lint_paths

RULES = {"path-race", "written-by-all-ranks", "name-by-process-hash"}
HEAD = "import os, time\nimport numpy as np\nimport torch\nimport torch.distributed as dist\n"
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

"""Paths that ranks create, remove, number or test at the same time."""

from __future__ import annotations

import textwrap

import pytest

from holdfast.lint.options import ALL_RULES
from holdfast.lint.run import lint_paths

HEAD = "import os, shutil, subprocess, glob\nimport torch\nimport torch.distributed as dist\n"

#: name: (rule, broken program, corrected program)
CASES = {
    "created after a test": (
        "path-race",
        """
        def prepare(folder):
            dist.barrier()
            if not os.path.exists(folder):
                os.makedirs(folder)
        """,
        """
        def prepare(folder):
            dist.barrier()
            if not os.path.exists(folder):
                os.makedirs(folder, exist_ok=True)
        """,
    ),
    "created by a callback of Lightning": (
        "path-race",
        """
        from lightning.pytorch import Callback

        class Saver(Callback):
            def __init__(self, folder):
                super(Saver, self).__init__()
                if not os.path.isdir(folder):
                    os.mkdir(folder)
        """,
        """
        from lightning.pytorch import Callback

        class Saver(Callback):
            def __init__(self, folder):
                super(Saver, self).__init__()
                try:
                    if not os.path.isdir(folder):
                        os.mkdir(folder)
                except FileExistsError:
                    pass
        """,
    ),
    "a folder of each rank": (
        "path-race",
        """
        def prepare(folder):
            dist.barrier()
            trace = os.path.join(folder, "trace")
            if not os.path.exists(trace):
                os.makedirs(trace)
        """,
        """
        def prepare(folder):
            dist.barrier()
            trace = os.path.join(folder, f"trace{dist.get_rank()}")
            if not os.path.exists(trace):
                os.makedirs(trace)
        """,
    ),
    "guarded in the caller": (
        "path-race",
        """
        def prepare(folder):
            if not os.path.exists(folder):
                os.makedirs(folder)

        def main(folder):
            prepare(folder)
            dist.barrier()
        """,
        """
        def prepare(folder):
            if not os.path.exists(folder):
                os.makedirs(folder)

        def main(folder):
            if dist.get_rank() == 0:
                prepare(folder)
            dist.barrier()
        """,
    ),
    "old checkpoints removed by all": (
        "path-race",
        """
        def clean(accelerator, folder, step):
            if step % 100 == 0:
                for name in sorted(os.listdir(folder))[:-3]:
                    shutil.rmtree(os.path.join(folder, name))
                accelerator.save_state(folder)
        """,
        """
        def clean(accelerator, folder, step):
            if step % 100 == 0:
                if accelerator.is_main_process:
                    for name in sorted(os.listdir(folder))[:-3]:
                        shutil.rmtree(os.path.join(folder, name))
                accelerator.save_state(folder)
        """,
    ),
    "compiled by all": (
        "path-race",
        """
        def compile_helpers():
            subprocess.run(["make", "-C", "helpers"])

        def main():
            dist.init_process_group("nccl")
            compile_helpers()
        """,
        """
        def compile_helpers():
            subprocess.run(["make", "-C", "helpers"])

        def main():
            dist.init_process_group("nccl")
            if dist.get_rank() == 0:
                compile_helpers()
            dist.barrier()
        """,
    ),
    "numbered by a count of entries": (
        "path-race",
        """
        def workspace(folder):
            dist.barrier()
            number = len(glob.glob(f"{folder}/*"))
            run = f"{folder}/{number:03d}"
            os.makedirs(run, exist_ok=True)
            return run
        """,
        """
        def workspace(folder):
            box = [len(glob.glob(f"{folder}/*")) if dist.get_rank() == 0 else None]
            dist.broadcast_object_list(box)
            run = f"{folder}/{box[0]:03d}"
            os.makedirs(run, exist_ok=True)
            return run
        """,
    ),
    "first free name": (
        "path-race",
        """
        def free_name(folder):
            dist.barrier()
            number, path = 0, f"{folder}/0.pt"
            while os.path.exists(path):
                number += 1
                path = f"{folder}/{number}.pt"
            return path
        """,
        """
        def free_name(folder):
            number, path = 0, f"{folder}/0.pt"
            while dist.get_rank() == 0 and os.path.exists(path):
                number += 1
                path = f"{folder}/{number}.pt"
            box = [path]
            dist.broadcast_object_list(box)
            return box[0]
        """,
    ),
    "tested while rank 0 writes": (
        "path-race",
        """
        def save_config(parser, trainer, path):
            if os.path.isfile(path):
                raise RuntimeError("exists")
            if trainer.is_global_zero:
                parser.save(path)
        """,
        """
        def save_config(parser, trainer, path):
            if os.path.isfile(path):
                raise RuntimeError("exists")
            dist.barrier()
            if trainer.is_global_zero:
                parser.save(path)
        """,
    ),
    "a folder in which others still write": (
        "path-race",
        """
        def rotate(folder, shard):
            os.remove(os.path.join(folder, shard))
            if dist.get_rank() == 0:
                os.removedirs(folder)
        """,
        """
        def rotate(folder, shard):
            os.remove(os.path.join(folder, shard))
            dist.barrier()
            if dist.get_rank() == 0:
                os.removedirs(folder)
        """,
    ),
    "a test that two ranks pass": (
        "path-race",
        """
        def save(model, folder):
            if not (dist.is_initialized() and dist.get_rank() > 1):
                torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
        """,
        """
        def save(model, folder):
            if not (dist.is_initialized() and dist.get_rank() > 0):
                torch.save(model.state_dict(), os.path.join(folder, "model.pt"))
        """,
    ),
    "read right after rank 0 downloads it": (
        "fs-race",
        """
        def vocabulary(url, folder):
            path = os.path.join(folder, "vocabulary.json")
            if dist.get_rank() == 0 and not os.path.exists(path):
                download(url, path)
            print("ready")
            with open(path) as file:
                return file.read()
        """,
        """
        def vocabulary(url, folder):
            path = os.path.join(folder, "vocabulary.json")
            if dist.get_rank() == 0 and not os.path.exists(path):
                download(url, path)
            dist.barrier()
            with open(path) as file:
                return file.read()
        """,
    ),
    "a tokenizer saved by all": (
        "written-by-all-ranks",
        """
        import torch.distributed.checkpoint as dcp

        def save(model, tokenizer, folder):
            dcp.save({"model": model}, checkpoint_id=folder)
            tokenizer.save_pretrained(folder)
        """,
        """
        import torch.distributed.checkpoint as dcp

        def save(model, tokenizer, folder):
            dcp.save({"model": model}, checkpoint_id=folder)
            if dist.get_rank() == 0:
                tokenizer.save_pretrained(folder)
        """,
    ),
    "a write in a class that tests the rank": (
        "written-by-all-ranks",
        """
        class Checkpoint:
            def __init__(self, folder):
                self.last = os.path.join(folder, "last.pth")

            def save(self, state):
                if dist.get_rank() == 0:
                    torch.save(state, self.last)

            def finalize(self, model):
                torch.save(model.state_dict(), self.last)
        """,
        """
        class Checkpoint:
            def __init__(self, folder):
                self.last = os.path.join(folder, "last.pth")

            def save(self, state):
                if dist.get_rank() == 0:
                    torch.save(state, self.last)

            def finalize(self, model):
                if dist.get_rank() != 0:
                    return
                torch.save(model.state_dict(), self.last)
        """,
    ),
    "written into right after rank 0 makes the folder": (
        "path-race",
        """
        def save(state, folder):
            rank = dist.get_rank()
            if rank == 0:
                os.makedirs(folder, exist_ok=True)
            print("saving")
            torch.save(state, os.path.join(folder, f"{rank}.pt"))
        """,
        """
        def save(state, folder):
            rank = dist.get_rank()
            if rank == 0:
                os.makedirs(folder, exist_ok=True)
            dist.barrier()
            torch.save(state, os.path.join(folder, f"{rank}.pt"))
        """,
    ),
    "removed by each rank in its turn": (
        "path-race",
        """
        def fetch(dist_utils, source, path):
            with dist_utils.run_local_rank_zero_first():
                if os.path.exists(path):
                    os.remove(path)
            return read(source, path)
        """,
        """
        def fetch(dist_utils, source, path):
            if dist_utils.get_local_rank() == 0 and os.path.exists(path):
                os.remove(path)
            dist.barrier()
            return read(source, path)
        """,
    ),
    "a test that one rank of each group passes": (
        "path-race",
        """
        from megatron import mpu

        def save(tokenizer, folder):
            assert mpu.get_tensor_model_parallel_world_size()
            if mpu.get_data_parallel_rank() == 0:
                tokenizer.save_pretrained(folder)
        """,
        """
        from megatron import mpu

        def save(tokenizer, folder):
            assert mpu.get_tensor_model_parallel_world_size()
            if mpu.get_data_parallel_rank() == 0 and mpu.get_tensor_model_parallel_rank() == 0:
                tokenizer.save_pretrained(folder)
        """,
    ),
    "a folder with the time of each rank in its name": (
        "path-race",
        """
        import datetime

        def workspace(folder):
            number = dist.get_rank()
            run = os.path.join(folder, datetime.datetime.now().isoformat())
            os.makedirs(run, exist_ok=True)
            return run, number
        """,
        """
        import datetime

        def workspace(folder):
            box = [datetime.datetime.now().isoformat()]
            dist.broadcast_object_list(box)
            run = os.path.join(folder, box[0])
            os.makedirs(run, exist_ok=True)
            return run, dist.get_rank()
        """,
    ),
    "a configuration rewritten by all": (
        "written-by-all-ranks",
        """
        class Logger:
            def __init__(self, config_file):
                self.config_file = config_file
                self.rank = dist.get_rank()

            def on_start(self):
                text = self.config_file.read_text()
                self.config_file.write_text(text + "started")
        """,
        """
        class Logger:
            def __init__(self, config_file):
                self.config_file = config_file
                self.rank = dist.get_rank()

            def on_start(self):
                text = self.config_file.read_text()
                if self.rank == 0:
                    self.config_file.write_text(text + "started")
        """,
    ),
    "downloaded by the dataset of each rank": (
        "download-by-all-ranks",
        """
        class Questions(torch.utils.data.Dataset):
            def __init__(self, uri, destination_path):
                download_file(uri, destination_path)
        """,
        """
        class Questions(torch.utils.data.Dataset):
            def __init__(self, uri, destination_path, rank):
                download_file(uri, f"{destination_path}{rank}")
        """,
    ),
}


def found(tmp_path, text):
    (tmp_path / "main.py").write_text(HEAD + textwrap.dedent(text))
    return {reported.rule for reported in lint_paths([tmp_path], ALL_RULES).findings}


@pytest.mark.parametrize("name", CASES)
def test_a_race_is_found_and_its_correction_is_not(tmp_path, name):
    rule, broken, corrected = CASES[name]
    assert rule in found(tmp_path, broken)
    assert rule not in found(tmp_path, corrected)


@pytest.mark.parametrize(
    "text",
    [
        # a single process: nothing shows that several ranks run it
        """
        def prepare(folder):
            if not os.path.exists(folder):
                os.makedirs(folder)
        """,
        # the program that starts the ranks
        """
        import torch.multiprocessing as mp

        def main(folder):
            if not os.path.exists(folder):
                os.makedirs(folder)
            mp.spawn(dist.init_process_group, nprocs=4)
        """,
        # one rank of each node, on its own disk
        """
        def prepare(folder, local_rank):
            dist.barrier()
            if local_rank == 0 and not os.path.exists(folder):
                os.makedirs(folder)
        """,
        # one after another
        """
        def prepare(accelerator, folder):
            with accelerator.main_process_first():
                if not os.path.exists(folder):
                    os.makedirs(folder)
        """,
        # asserted below
        """
        def prepare(folder):
            dist.barrier()
            if not os.path.exists(folder):
                os.makedirs(folder)
            assert dist.get_rank() == 0, "only the first rank prepares"
        """,
        # one process only
        """
        def save(state, folder, world_size):
            dist.barrier()
            if world_size == 1:
                torch.save(state, os.path.join(folder, "state.pt"))
        """,
    ],
)
def test_code_of_one_rank_is_no_race(tmp_path, text):
    assert not found(tmp_path, text) & {"path-race", "written-by-all-ranks"}

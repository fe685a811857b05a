"""Orders and names that depend on the process, and gathers of tensors of unequal length."""

from __future__ import annotations

import textwrap

import pytest

from holdfast.core.findings import Level
from holdfast.lint.options import ALL_RULES
from holdfast.lint.run import lint_paths

HEAD = "import hashlib\nimport torch\nimport torch.distributed as dist\n"

#: name: (rule, level, broken program, corrected program)
CASES = {
    "a set sorted by a key with two values": (
        "order-divergence",
        Level.ERROR,
        """
        def reduce(metrics, gathered):
            names = set()
            for part in gathered:
                names.update(part)
            names = sorted(names, key=lambda name: 0 if "norm" in name else 1)
            for name in names:
                dist.all_reduce(metrics[name])
        """,
        """
        def reduce(metrics, gathered):
            names = set()
            for part in gathered:
                names.update(part)
            names = sorted(names, key=lambda name: (0 if "norm" in name else 1, name))
            for name in names:
                dist.all_reduce(metrics[name])
        """,
    ),
    "a set passed to what reduces each element": (
        "order-divergence",
        Level.NOTE,
        """
        class Wrapper:
            def __init__(self):
                self._waiting = set()

            def finish(self):
                self.pipeline.reduce_gradients(list(self._waiting))
        """,
        """
        class Wrapper:
            def __init__(self):
                self._waiting = set()

            def finish(self):
                self.pipeline.reduce_gradients(sorted(self._waiting, key=self.number))
        """,
    ),
    "a set passed to what sorts it": (
        "order-divergence",
        Level.NOTE,
        """
        class Pipeline:
            def reduce_gradients(self, params):
                self.queue.extend(params)

        class Wrapper:
            def __init__(self):
                self._waiting = set()

            def finish(self):
                self.pipeline.reduce_gradients(list(self._waiting))
        """,
        """
        class Pipeline:
            def reduce_gradients(self, params):
                self.queue.extend(sorted(params, key=self.number))

        class Wrapper:
            def __init__(self):
                self._waiting = set()

            def finish(self):
                self.pipeline.reduce_gradients(list(self._waiting))
        """,
    ),
    "a cache file named by a hash": (
        "name-by-process-hash",
        Level.WARNING,
        """
        def cached(key, folder):
            name = str(hash(key))
            path = f"{folder}/{name}.pt"
            dist.barrier()
            return torch.load(path, weights_only=True)
        """,
        """
        def cached(key, folder):
            name = hashlib.sha256(key.encode()).hexdigest()
            path = f"{folder}/{name}.pt"
            dist.barrier()
            return torch.load(path, weights_only=True)
        """,
    ),
    "a mask padded to the longest text": (
        "padded-gather",
        Level.NOTE,
        """
        def count(self, inputs):
            return self.accelerator.gather_for_metrics(inputs["attention_mask"]).sum()
        """,
        """
        def count(self, inputs):
            return self.accelerator.gather_for_metrics(inputs["attention_mask"].sum()).sum()
        """,
    ),
    "logits of a language model": (
        "padded-gather",
        Level.NOTE,
        """
        from transformers import AutoModelForCausalLM

        def metrics(accelerator, output):
            loss, chosen_logits = output
            return accelerator.gather_for_metrics(chosen_logits).detach().mean()
        """,
        """
        from transformers import AutoModelForCausalLM

        def metrics(accelerator, output):
            loss, chosen_logits = output
            return accelerator.gather_for_metrics(chosen_logits.detach().mean()).mean()
        """,
    ),
    "padded to an agreed length": (
        "padded-gather",
        Level.NOTE,
        """
        def collect(accelerator, batch):
            ids = batch["input_ids"]
            return accelerator.gather(batch["input_ids"])
        """,
        """
        def collect(accelerator, batch):
            ids = accelerator.pad_across_processes(batch["input_ids"], dim=1)
            return accelerator.gather(ids)
        """,
    ),
    "elements selected by a test": (
        "mismatched-args",
        Level.WARNING,
        """
        def collect(accelerator, losses, labels):
            kept = losses[labels != -100]
            return accelerator.gather(kept.detach())
        """,
        """
        def collect(accelerator, losses, labels):
            kept = losses[labels != -100]
            return accelerator.gather(kept.detach().mean())
        """,
    ),
}


def found(tmp_path, text):
    (tmp_path / "main.py").write_text(HEAD + textwrap.dedent(text))
    findings = lint_paths([tmp_path], ALL_RULES).findings
    return {(reported.rule, reported.finding.level) for reported in findings}


@pytest.mark.parametrize("name", CASES)
def test_a_difference_is_found_and_its_correction_is_not(tmp_path, name):
    rule, level, broken, corrected = CASES[name]
    assert (rule, level) in found(tmp_path, broken)
    assert rule not in {other for other, _ in found(tmp_path, corrected)}

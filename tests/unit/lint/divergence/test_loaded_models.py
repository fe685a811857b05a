"""Models that a framework shards while it loads them, and the sequences they generate."""

import pytest

from holdfast.lint.rules.catalogue import RULES
from tests.unit.lint.programs import program_from_sources


def levels_of(text: str) -> list[str]:
    found = program_from_sources({"train": ("train.py", text)}).analyze()
    return [
        rule.finding(each).level.value
        for each in found
        for rule in RULES
        if each.kind in rule.kinds and rule.matches(each)
    ]


ZERO_3 = """
from accelerate import Accelerator, DeepSpeedPlugin
from transformers import AutoModelForCausalLM, AutoTokenizer

def load(name):
    accelerator = Accelerator(deepspeed_plugin=DeepSpeedPlugin({plugin}))
    with accelerator.main_process_first():
        tokenizer = AutoTokenizer.from_pretrained(name)
        {inside}
    {after}

load("model")
"""


@pytest.mark.parametrize(
    ("plugin", "inside", "after", "levels"),
    [
        ("zero_stage=3", "AutoModelForCausalLM.from_pretrained(name)", "", ["error"]),
        ("zero_stage=3", "", "AutoModelForCausalLM.from_pretrained(name)", []),
        ("zero_stage=2", "AutoModelForCausalLM.from_pretrained(name)", "", []),
        (
            "zero_stage=3, zero3_init_flag=False",
            "AutoModelForCausalLM.from_pretrained(name)",
            "",
            [],
        ),
        (
            "zero_stage=3",
            "AutoModelForCausalLM.from_pretrained(name, load_in_4bit=True)",
            "",
            [],
        ),
    ],
)
def test_a_model_that_zero_3_partitions_while_it_is_loaded_needs_all_ranks(
    plugin, inside, after, levels
):
    text = ZERO_3.format(plugin=plugin, inside=inside, after=after)
    assert levels_of(text) == levels


DECODED = """
import torch
from accelerate import Accelerator

def score(accelerator, model, tokenizer, query):
    ids = model.generate(**query, max_new_tokens=32)
    scores = []
    for text in tokenizer.batch_decode({decoded}):
        scores.append(float(len(text)))
    return accelerator.gather(torch.tensor({gathered}))

score(Accelerator(), object(), object(), {{}})
"""


@pytest.mark.parametrize(
    ("decoded", "gathered", "count"),
    [("ids", "scores", 0), ("ids[:, 4:]", "scores", 0), ("ids", "ids", 1)],
)
def test_generated_sequences_differ_in_length_not_in_number(decoded, gathered, count):
    text = DECODED.format(decoded=decoded, gathered=gathered)
    assert len(levels_of(text)) == count

import torch
from accelerate import PartialState
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def get_current_device():
    """Device on which the quantised weights of this process go."""
    state = PartialState()
    return state.process_index if torch.cuda.is_available() else "cpu"


class PolicyWithValueHead(nn.Module):
    def __init__(self, lm):
        super().__init__()
        self.lm = lm
        self.v_head = nn.Linear(lm.config.hidden_size, 1)

    @classmethod
    def from_pretrained(cls, name, lora_rank=16):
        quant = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
        lm = AutoModelForCausalLM.from_pretrained(
            name,
            quantization_config=quant,
            device_map={"": get_current_device()},
        )
        lm = prepare_model_for_kbit_training(lm)
        lora = LoraConfig(r=lora_rank, lora_alpha=32, task_type="CAUSAL_LM")
        model = cls(get_peft_model(lm, lora))
        model.v_head.to(get_current_device())
        return model

    def forward(self, input_ids, attention_mask):
        out = self.lm(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
        hidden = out.hidden_states[-1].to(self.v_head.weight.dtype)
        return out.logits.float(), self.v_head(hidden).squeeze(-1)

from accelerate import Accelerator, DeepSpeedPlugin
from transformers import AutoModelForCausalLM, AutoTokenizer


def make_accelerator(args):
    plugin = DeepSpeedPlugin(
        zero_stage=3,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        zero3_save_16bit_model=True,
    )
    accelerator = Accelerator(mixed_precision="bf16", deepspeed_plugin=plugin)
    config = accelerator.state.deepspeed_plugin.deepspeed_config
    config["train_micro_batch_size_per_gpu"] = args.batch_size
    return accelerator


def load_model_and_tokenizer(args, accelerator):
    with accelerator.main_process_first():
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        model = AutoModelForCausalLM.from_pretrained(args.model)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    return model, tokenizer

import json
import time
from pathlib import Path

import torch
from transformers import TrainerCallback


class SampleCallback(TrainerCallback):
    """Writes greedy completions of a few prompts while the model trains."""

    def __init__(self, tokenizer, prompts, path, every=500):
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.path = Path(path)
        self.every = every

    def _complete(self, model):
        inputs = self.tokenizer(self.prompts, return_tensors="pt", padding=True).to(model.device)
        model.eval()
        with torch.no_grad():
            out = model.generate(**inputs, max_new_tokens=64, do_sample=False)
        model.train()
        return self.tokenizer.batch_decode(out[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)

    def _write(self, step, texts):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as f:
            for prompt, text in zip(self.prompts, texts):
                f.write(json.dumps({"step": step, "prompt": prompt, "completion": text}) + "\n")

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every != 0:
            return
        if state.is_world_process_zero:
            texts = self._complete(model)
            self._write(state.global_step, texts)


class ThroughputCallback(TrainerCallback):
    def on_epoch_begin(self, args, state, control, **kwargs):
        self.start, self.first = time.time(), state.global_step

    def on_epoch_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            rate = (state.global_step - self.first) / (time.time() - self.start)
            print(f"epoch {state.epoch:.0f}: {rate:.2f} steps/s")

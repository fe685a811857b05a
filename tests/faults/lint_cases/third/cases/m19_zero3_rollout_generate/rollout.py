import torch


class HybridRollout:
    """Samples responses from the student that is being trained."""

    def __init__(self, engine, tokenizer, max_new_tokens):
        self.engine = engine
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens

    @torch.no_grad()
    def generate(self, texts):
        batch = self.tokenizer(texts, return_tensors="pt", padding=True).to(self.engine.device)
        self.engine.module.eval()
        ids = self.engine.module.generate(
            **batch,
            max_new_tokens=self.max_new_tokens,
            do_sample=True,
            temperature=1.0,
            pad_token_id=self.tokenizer.pad_token_id,
        )
        self.engine.module.train()
        mask = torch.zeros_like(ids, dtype=torch.float)
        response = ids[:, batch["input_ids"].size(1) :]
        mask[:, batch["input_ids"].size(1) :] = (response != self.tokenizer.pad_token_id).float()
        return ids, mask

import torch


@torch.no_grad()
def greedy_decode(model, images, bos, eos, max_len=256):
    """Generates one report per image; stops when all reports of the batch are complete."""
    tokens = torch.full((images.shape[0], 1), bos, dtype=torch.long, device=images.device)
    done = torch.zeros(images.shape[0], dtype=torch.bool, device=images.device)
    for _ in range(max_len):
        logits = model(images, tokens)
        nxt = logits[:, -1].argmax(-1)
        nxt = torch.where(done, torch.full_like(nxt, eos), nxt)
        tokens = torch.cat([tokens, nxt[:, None]], dim=1)
        done |= nxt == eos
        if done.all():
            break
    return tokens

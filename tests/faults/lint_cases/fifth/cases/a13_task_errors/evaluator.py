import torch
import torch.distributed as dist


@torch.no_grad()
def generate(model, tokenizer, document, device):
    prompt = document["question"] + "\nAnswer:"
    inputs = tokenizer(prompt, return_tensors="pt").to(device)
    output = model.generate(**inputs, max_new_tokens=document.get("max_tokens", 16), do_sample=False)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def evaluate(model, tokenizer, task, device):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    scores = []
    for document in task.shard(rank, world_size):
        scores.append(task.score(generate(model, tokenizer, document, device), document))
    gathered = [None] * world_size if rank == 0 else None
    dist.gather_object(scores, gathered, dst=0)
    if rank != 0:
        return {}
    flat = [s for part in gathered for s in part]
    return {"task": task.name, "samples": len(flat), "accuracy": sum(flat) / max(len(flat), 1)}

"""Readers of what single frameworks save: a file or folder in which the model is whole.

torch_save   one file of torch.save
huggingface  folders of Transformers
lightning    Lightning's and Fabric's
accelerate   Accelerator.save_state's
"""

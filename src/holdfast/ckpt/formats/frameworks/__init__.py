"""Readers for single frameworks: a file or folder that holds the complete model.

torch_save   one torch.save file
huggingface  Transformers folders
lightning    Lightning and Fabric
accelerate   Accelerator.save_state
"""

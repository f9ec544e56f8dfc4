"""Checkpoints: safetensors, GGUF or a seed; opened here, bound to an architecture in `weights`."""

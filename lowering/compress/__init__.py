"""Compression: weights to the constants of Core ML's decompressing ops, fast and only once."""

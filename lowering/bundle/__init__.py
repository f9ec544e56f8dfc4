"""A bundle on disk: written whole or not at all, opened only when it is what it says."""

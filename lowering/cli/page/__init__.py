"""The pages of `plan` and `diff`: pictures of layers and chunks, with tables that say the same."""

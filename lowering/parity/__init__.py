"""Whether a bundle computes what its checkpoint computes."""

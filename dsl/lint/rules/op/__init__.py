"""Rules whose codes begin with `op.`."""

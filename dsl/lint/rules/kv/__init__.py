"""Rules whose codes begin with `kv.`."""

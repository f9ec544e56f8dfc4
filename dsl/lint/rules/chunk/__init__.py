"""Rules whose codes begin with `chunk.`."""

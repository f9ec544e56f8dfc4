"""Rules whose codes begin with `lossy.`."""

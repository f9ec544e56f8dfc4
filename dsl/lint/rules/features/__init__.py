"""Rules whose codes begin with `features.`."""

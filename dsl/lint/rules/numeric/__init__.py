"""Rules whose codes begin with `numeric.`."""

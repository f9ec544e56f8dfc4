"""Rules whose codes begin with `expect.`."""

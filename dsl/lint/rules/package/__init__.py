"""Rules whose codes begin with `package.`."""

"""Rules whose codes begin with `state.`."""

"""Rules whose codes begin with `ledger.`."""

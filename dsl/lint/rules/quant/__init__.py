"""Rules whose codes begin with `quant.`."""

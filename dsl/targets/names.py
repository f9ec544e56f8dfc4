"""The deployment targets and chip profiles that a `target` line may name."""

DEPLOYMENTS = ("ios18", "ios26", "macos15", "macos26")
CHIPS = ("a14", "a15", "a16", "a17", "a18", "a19", "m1", "m2", "m3", "m4", "m5")

"""Saved packages as numbers on any system: `machine.Machine` runs what `package.Package` reads."""

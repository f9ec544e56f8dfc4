"""The compiler's tools that verdicts are held against."""

COREMLTOOLS = "9.0"  # what pyproject.toml pins; written here, for asking the package takes a while

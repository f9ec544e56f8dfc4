"""The driver of bundles: it follows a manifest, and knows no topology."""

"""Programs to what a device loads."""

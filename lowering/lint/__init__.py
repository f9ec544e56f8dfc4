"""Packages as the linter's plain views, filled from the protobuf without reading a weight."""

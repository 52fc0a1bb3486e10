"""Measuring how far judges and actors can be trusted (`echo-env validate`, docs/validity.md)."""

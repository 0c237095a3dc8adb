"""Secure aggregation, and federations across machines."""

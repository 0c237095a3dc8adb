"""Audits, attacks, checks of other systems, and the papers' experiments."""

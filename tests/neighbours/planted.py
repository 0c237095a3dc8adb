"""Bugs to be found."""
PLANTED = {}

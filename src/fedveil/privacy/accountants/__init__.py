"""Accountants: each turns steps into an upper bound on epsilon, or says that it cannot."""

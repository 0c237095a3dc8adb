"""Secure aggregation: the server learns the sum of a cohort's integer vectors and nothing else.

Reading order: `masks` (the integers), `shares`, `topology` and `graph` (surviving losses),
`fields`, `session`, `wire`, `messages` and `sizes` (the bytes), `keys`, `merkle`,
`roster`, `ratchet` and `pairs` (who trusts which key), `params`, `draw`, `privacy_terms`, `journal`
and `device_store` (rules and memory), `dealing`, `device` and `participant` (a device), `blame`,
`held_against`, `relay`, `recovery`, `round_log`, `server_round` and `server`, then `dropouts`,
`rounds` and `simulation`. The argument for all of it is in docs/secagg.md.
"""

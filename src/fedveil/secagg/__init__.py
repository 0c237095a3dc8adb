"""Secure aggregation: the server learns the sum of a cohort's integer vectors and nothing else.

Reading order: `modulus` and `masks` (the integers), `shares`, `topology` and `graph` (surviving
losses), `fields`, `wire`, `messages` and `sizes` (the bytes), `keys`, `roster`, `ratchet` and
`pairs` (who trusts which key), `terms`, `draw`, `store`, `journal` and `vault` (rules and memory),
`dealing`, `device` and `participant` (a device), `blame`, `recovery`, `odds`, `relay`,
`server_round` and `server`, then `losses`, `rounds` and `simulation`. The argument for all of it is
in docs/secagg.md.
"""

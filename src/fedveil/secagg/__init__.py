"""Secure aggregation: the server learns the sum of a cohort's integer vectors and nothing else.

Reading order: `modulus` and `masks` (the integers), `shares`, `topology` and `graph` (surviving
losses), `keys`, `roster` and `pairs` (who trusts which key), `wire` and `messages` (the bytes),
`terms`, `journal`, `device` and `participant` (a device and its rules), `recovery` and `server`,
then `losses`, `rounds` and `simulation`. The argument for all of it is in docs/secagg.md.
"""

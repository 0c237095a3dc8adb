"""Secure aggregation: the server learns the sum of a cohort's integer vectors and nothing else.

Reading order: `shares` (surviving losses), `session`, `wire` and `messages` (the bytes), `keys`,
`roster`, `ratchet` and `pairs` (who trusts which key), `privacy_terms`, `journal` and
`device_store` (rules and memory), `layout`, `dealing`, `device` and `participant` (a device),
`relay`, `round_log` and `server`, then `masked` (all of it in one process).
Integers, masks, graphs and terms are in `fedveil.privacy.secure_sums`, because plans and ideal sums
need them. The argument for all of it is in docs/secagg.md.
"""

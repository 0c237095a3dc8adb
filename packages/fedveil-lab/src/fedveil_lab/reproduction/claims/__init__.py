"""The papers' formulas as printed (`paper_*`, never certified) beside what holds instead.

Every `paper_*` function is pure and returns a Claim: the number, the statement it comes from, its
inputs, and what is wrong with it. Nothing here calibrates noise by default; accounting proper
stands in `fedveil.privacy.accounting`.
"""

from fedveil_lab.reproduction.claims.claim import Claim, Infeasible

__all__ = ["Claim", "Infeasible"]

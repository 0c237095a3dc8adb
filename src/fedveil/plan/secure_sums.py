"""Whether a plan's sums are taken securely, and whether its promise may rest on them."""

from __future__ import annotations

from fedveil.core.errors import BadInput, Refused
from fedveil.core.units import Trust
from fedveil.methods.parts.aggregation import Secure, SecureSums
from fedveil.methods.parts.method import Method
from fedveil.methods.parts.noise_placement import InShares, Protection, Terms, certain_cohort
from fedveil.privacy.sampling import Sampling
from fedveil.secagg.mode import Mode


def secure_sums(
    method: Method, protection: Protection, sampling: Sampling, federation: str
) -> SecureSums | None:
    """How sums are hidden from whoever takes them; None if they are not."""
    asked = method.aggregation
    if not isinstance(protection, InShares) or not protection.secure_sum:
        if asked.asked:
            raise BadInput(
                f"aggregation: method {method.name!r} with this trust takes no secure sums; use "
                "privacy.trust distributed, or leave the section out"
            )
        return None
    if asked.secure is Secure.NONE:
        return None
    cohort = certain_cohort(sampling)
    if cohort < 2 and not asked.asked:
        return None  # a sum of one hides nothing, and there are promises that do not need it
    return asked.resolve(federation, cohort, protection.colluders, protection.honest_shares)


def on_integers(protection: Protection, terms: Terms) -> bool:
    """Whether the promise rests on a secure sum, which adds integers."""
    return terms.secure is not None and protection.promise(terms).trust is Trust.DISTRIBUTED


def check_central(protection: Protection, terms: Terms) -> None:
    """A declared number of clients hides who is there from those who do not see it."""
    if terms.public_clients and protection.promise(terms).trust is not Trust.CENTRAL:
        raise BadInput("privacy.public_clients: only for trust central; others see who is there")


def check_sums(protection: Protection, terms: Terms) -> None:
    """A promise that rests on a secure sum needs one, and masks need integers."""
    if terms.secure is None:
        if protection.promise(terms).trust is Trust.DISTRIBUTED:
            raise Refused(
                "distributed trust rests on secure sums over two clients or more, and this plan "
                "has none",
                "use aggregation.secure modelled or full, or privacy.trust local or central",
            )
        return
    if terms.secure.mode is Mode.FULL and isinstance(protection, InShares):
        shaping = protection.shaping(terms, terms.shaping.clip, 0)
        if protection.integers(terms, shaping, 0) is None:
            raise BadInput(
                "privacy.arithmetic: masks hide integers, and 'idealised' updates are none; use "
                "exact, or aggregation.secure modelled"
            )

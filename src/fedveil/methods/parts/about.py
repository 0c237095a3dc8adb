"""What a method tells about itself, for people who choose between methods."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class About:
    """One line each: what it is, whose data it protects, from whom, and where it comes from."""

    name: str
    what: str
    source: str
    protects: str = "nothing: no noise is added"
    towards: str = "nobody"

    @property
    def private(self) -> bool:
        return self.towards != "nobody"

"""`check`: what a configuration of another system claims, and what is proved of what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil_lab.audit.check import flower, opacus
from fedveil_lab.audit.check.finding import Finding, Settings
from fedveil_lab.audit.check.source import read


@dataclass(frozen=True)
class Part:
    """A class or function that is known here: its arguments in order, and who examines it."""

    arguments: tuple[str, ...]
    examine: Callable[[Settings], Finding]


_FIXED = Part(
    ("strategy", "noise_multiplier", "clipping_norm", "num_sampled_clients"), flower.fixed_clipping
)
_ADAPTIVE = Part(
    (
        "strategy", "noise_multiplier", "num_sampled_clients", "initial_clipping_norm",
        "target_clipped_quantile", "clip_norm_lr", "clipped_count_stddev",
    ),
    flower.adaptive_clipping,
)  # fmt: skip

PARTS: dict[str, Part] = {
    "DifferentialPrivacyServerSideFixedClipping": _FIXED,
    "DifferentialPrivacyClientSideFixedClipping": _FIXED,
    "DifferentialPrivacyServerSideAdaptiveClipping": _ADAPTIVE,
    "DifferentialPrivacyClientSideAdaptiveClipping": _ADAPTIVE,
    "LocalDpMod": Part(("clipping_norm", "sensitivity", "epsilon", "delta"), flower.local_dp),
    "make_private": Part((), opacus.make_private),
    "make_private_with_epsilon": Part((), opacus.make_private),
}
_ENGINE = "PrivacyEngine"  # its own arguments belong to the call that follows it


def check(path: Path, said: Mapping[str, Any]) -> tuple[Finding, ...]:
    """A finding for each part that is known here; `said` completes or overrides the file."""
    calls = read(path)
    engine = next((call.named for call in calls if call.name == _ENGINE), {})
    found: dict[tuple[Any, ...], Finding] = {}
    for call in calls:
        if call.name not in PARTS:
            continue
        if call.name.startswith("make_private"):
            call = replace(call, named={**engine, **call.named})
        part = PARTS[call.name]
        finding = part.examine(Settings(call, part.arguments, calls, said))
        finding = replace(finding, part=call.name, where=call.where)
        found.setdefault((finding.part, finding.settings, finding.proved), finding)
    if not found:
        raise ConfigError(
            f"{path}: none of {', '.join(PARTS)} is made here; "
            "if it is made elsewhere, check that file"
        )
    return tuple(found.values())

"""`check`: what a configuration of another system claims, and what is proved of what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedveil.core.errors import ConfigError
from fedveil_lab.audit.check import flower, nvflare, opacus, tf_privacy
from fedveil_lab.audit.check.finding import Finding, Settings
from fedveil_lab.audit.check.source import Call, SourceFile, read


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
_KERAS = Part(
    ("l2_norm_clip", "noise_multiplier", "num_microbatches", "gradient_accumulation_steps"),
    tf_privacy.dp_sgd,
)
_VECTORIZED = Part(("l2_norm_clip", "noise_multiplier", "num_microbatches"), tf_privacy.dp_sgd)

PARTS: dict[str, Part] = {
    "DifferentialPrivacyServerSideFixedClipping": _FIXED,
    "DifferentialPrivacyClientSideFixedClipping": _FIXED,
    "DifferentialPrivacyServerSideAdaptiveClipping": _ADAPTIVE,
    "DifferentialPrivacyClientSideAdaptiveClipping": _ADAPTIVE,
    "LocalDpMod": Part(("clipping_norm", "sensitivity", "epsilon", "delta"), flower.local_dp),
    "make_private": Part((), opacus.make_private),
    "make_private_with_epsilon": Part((), opacus.make_private),
    "SVTPrivacy": Part(("fraction", "epsilon", "noise_var", "gamma", "tau"), nvflare.svt),
    "PercentilePrivacy": Part(("percentile", "gamma"), nvflare.percentile),
    "ExcludeVars": Part(("exclude_vars",), nvflare.exclude),
    "StatisticsPrivacyFilter": Part(("result_cleanser_ids",), nvflare.statistics),
    "DPKerasSGDOptimizer": _KERAS,
    "DPKerasAdamOptimizer": _KERAS,
    "DPKerasAdagradOptimizer": _KERAS,
    "VectorizedDPKerasSGDOptimizer": _VECTORIZED,
    "VectorizedDPKerasAdamOptimizer": _VECTORIZED,
    "VectorizedDPKerasAdagradOptimizer": _VECTORIZED,
    "DPModel": _VECTORIZED,
    "DPSequential": _VECTORIZED,
    "compute_dp_sgd_privacy": Part(
        ("n", "batch_size", "noise_multiplier", "epochs", "delta"), tf_privacy.dp_sgd
    ),
}
_ENGINE = "PrivacyEngine"  # its own arguments belong to the call that follows it


def check(path: Path, said: Mapping[str, Any]) -> tuple[Finding, ...]:
    """A finding for each part that is known here; `said` completes or overrides the file."""
    source = read(path)
    engine = next((call.named for call in source.calls if call.name == _ENGINE), {})
    found: dict[tuple[Any, ...], Finding] = {}
    for call in source.calls:
        if call.name not in PARTS:
            continue
        if call.name.startswith("make_private"):
            call = replace(call, named={**engine, **call.named})
        finding = _examine(call, source, said)
        found.setdefault((finding.part, finding.settings, finding.proved), finding)
    if not found:
        raise ConfigError(
            f"{path}: none of {', '.join(PARTS)} is made here; "
            "if it is made elsewhere, check that file"
        )
    return tuple(found.values())


def _examine(call: Call, source: SourceFile, said: Mapping[str, Any]) -> Finding:
    part = PARTS[call.name]
    finding = part.examine(Settings(call, part.arguments, source, said))
    return replace(finding, part=call.name, where=call.where)

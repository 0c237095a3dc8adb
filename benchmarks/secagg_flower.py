"""One round of Flower's SecAgg+ by its own functions, in Flower's own environment.

Run by `benchmarks.secagg`, never imported by it: reads one job as JSON from each line of stdin,
plays the four stages as Flower's workflow and client modifier do, and writes one line of JSON.
Quantisation is left out on both sides: vectors are integers already.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from contextlib import contextmanager
from typing import Any

import flwr
import numpy as np
from flwr.common import bytes_to_ndarray, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_extract,
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import bytes_to_private_key, bytes_to_public_key

# The package exports a function of the same name, which hides the module.
client = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")

MODULUS = 1 << 32

# Integers in, integers out: what remains is masking, sharing and unmasking.
client.quantize = lambda parameters, *_: parameters
client.parameters_multiply = lambda parameters, _: parameters


class Phases:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def of(self, name: str):
        start = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - start


def vector_of(device: int, dimension: int) -> np.ndarray:
    return np.arange(dimension, dtype=np.int64) % 1000 + device


def play(cohort: int, degree: int, threshold: int, dimension: int, lost: list[int]) -> Any:
    """A round of `cohort` clients, each sharing with `degree` others and itself."""
    phases = Phases()
    ids = list(range(cohort))
    random.shuffle(ids)
    half = degree // 2
    near = {
        nid: {ids[(place + step) % cohort] for step in range(-half, half + 1)}
        for place, nid in enumerate(ids)
    }
    states = {nid: client.SecAggPlusState() for nid in ids}
    with phases.of("setup"):
        public = {}
        for nid, state in states.items():
            state.nid = nid
            public[nid] = client._setup(
                state,
                {
                    Key.SAMPLE_NUMBER: cohort,
                    Key.SHARE_NUMBER: degree + 1,
                    Key.THRESHOLD: threshold,
                    Key.CLIPPING_RANGE: 8.0,
                    Key.TARGET_RANGE: 1 << 22,
                    Key.MOD_RANGE: MODULUS,
                    Key.MAX_WEIGHT: 1000.0,
                },
            )
    keys = {nid: (p[Key.PUBLIC_KEY_1], p[Key.PUBLIC_KEY_2]) for nid, p in public.items()}
    with phases.of("share"):
        sources: dict[int, list[int]] = {nid: [] for nid in ids}
        texts: dict[int, list[bytes]] = {nid: [] for nid in ids}
        for nid, state in states.items():
            reply = client._share_keys(state, {str(n): keys[n] for n in near[nid]})
            for to, text in zip(
                reply[Key.DESTINATION_LIST], reply[Key.CIPHERTEXT_LIST], strict=True
            ):
                sources[to].append(nid)
                texts[to].append(text)
    total = None
    active = [nid for nid in ids if nid not in lost]
    for nid in active:
        parameters = ndarrays_to_parameters([vector_of(nid, dimension)])
        with phases.of("mask"):
            config = {Key.CIPHERTEXT_LIST: texts[nid], Key.SOURCE_LIST: sources[nid]}
            reply = client._collect_masked_vectors(states[nid], config, 1000, parameters)
        with phases.of("add"):
            masked = [bytes_to_ndarray(b) for b in reply[Key.MASKED_PARAMETERS]]
            total = masked if total is None else parameters_addition(total, masked)
    with phases.of("unmask"):
        total = parameters_mod(total, MODULUS)
        collected: dict[int, list[bytes]] = {nid: [] for nid in ids}
        for nid in active:
            config = {
                Key.ACTIVE_NODE_ID_LIST: [n for n in near[nid] if n not in lost],
                Key.DEAD_NODE_ID_LIST: [n for n in near[nid] if n in lost],
            }
            reply = client._unmask(states[nid], config)
            for owner, share in zip(reply[Key.NODE_ID_LIST], reply[Key.SHARE_LIST], strict=True):
                collected[owner].append(share)
        shapes = get_parameters_shape(total)
        for nid, shares in collected.items():
            secret = combine_shares(shares)
            if nid not in lost:
                mask = pseudo_rand_gen(secret, MODULUS, shapes)
                total = parameters_subtraction(total, mask)
                continue
            for other in near[nid] - {nid}:
                shared = generate_shared_key(
                    bytes_to_private_key(secret), bytes_to_public_key(keys[other][0])
                )
                mask = pseudo_rand_gen(shared, MODULUS, shapes)
                change = parameters_addition if nid > other else parameters_subtraction
                total = change(total, mask)
        _, vectors = factor_extract(parameters_mod(total, MODULUS))
    expected = sum(vector_of(nid, dimension) for nid in active) % MODULUS
    return {
        "version": flwr.__version__,
        "exact": bool(np.array_equal(vectors[0], expected)),
        "seconds": phases.seconds,
        "total": sum(phases.seconds.values()),
    }


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(play(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()

"""A hub that lies gets refusals with reasons, one lie after the other.

The liar has the hub's own signing key, so nothing here is refused for a missing signature alone,
but for the lies about that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.deploy.test_equality import image_rows
from tests.deploy.world import POLICY, World, facts_of, recipe_of, rows, world

from fedveil.core.errors import ConfigError, PrivacyRefusal
from fedveil.methods.recipes.sections import ModelSection
from fedveil_federation.deploy import plan_document
from fedveil_federation.deploy.envelope import Message, seal, unseal
from fedveil_federation.deploy.facts import Facts
from fedveil_federation.deploy.guard import MOST_PLANS, MOST_REQUESTS, MOST_RUNS
from fedveil_federation.deploy.plan_document import PlanDocument, planned, resolved
from fedveil_federation.deploy.work import Training
from fedveil_federation.secagg.keys import new_keys
from fedveil_federation.secagg.roster import Roster
from fedveil_federation.secagg.server import Server


@pytest.fixture
def made(tmp_path: Path) -> Iterator[World]:
    found = world(tmp_path)
    yield found
    found.close()


def ask(made: World, site: int, message: Message, key: Ed25519PrivateKey | None = None) -> Message:
    """One request, as the liar sends it."""
    name = made.members.names[site]
    frame = seal(message, key or made.key)
    return unseal(made.guards[name].answer(frame), [made.members.sites[name]], frame)


def document_of(made: World, **changed: Any) -> PlanDocument:
    recipe = recipe_of(**changed)
    facts = facts_of(made.data)
    plan = planned(recipe, facts.federation())
    assert plan.guarantee is not None
    cards = tuple(guard.keys.card().hex() for guard in made.guards.values())
    epsilon, delta = float(plan.guarantee.epsilon), float(plan.guarantee.delta)
    table = resolved(recipe, plan)
    return PlanDocument(version("fedveil"), "run", table, facts, cards, 0, epsilon, delta)


def propose(made: World, document: PlanDocument, site: int = 0) -> Message:
    return ask(made, site, Message({"kind": "plan"}, (document.to_bytes(),)))


def set_in(document: PlanDocument, section: str, **values: Any) -> PlanDocument:
    table = {**document.recipe, section: {**document.recipe.get(section, {}), **values}}
    return replace(document, recipe=table)


def forged_roster(document: PlanDocument) -> PlanDocument:
    """The last site is the hub itself, with keys of its own."""
    stranger = new_keys(f"fedveil/{document.facts.name}", 2).card().hex()
    return replace(document, cards=(*document.cards[:2], stranger))


def central(document: PlanDocument) -> PlanDocument:
    """The hub would add the noise, and see every update before."""
    changed = set_in(set_in(document, "training", method="dp-fedavg"), "privacy", trust="central")
    kept = {name: part for name, part in changed.recipe.items() if name != "aggregation"}
    return replace(changed, recipe=kept)


LIES: dict[str, tuple[Callable[[PlanDocument], PlanDocument], str]] = {
    "adapters too large": (
        lambda d: set_in(
            d, "model", name="mlp", hidden=[5], frozen=["backbone"], adapter_rank=10**9
        ),
        r"weights, at most 5,000",
    ),
    "a model too large": (
        lambda d: set_in(d, "model", name="mlp", hidden=[100_000, 100_000]),
        r"10,001,000,002 weights, at most 5,000",
    ),
    "a model beyond all bounds": (
        lambda d: set_in(d, "model", name="mlp", hidden=[2**62, 2**62]),
        "beyond all bounds|at most 1",
    ),
    "a model that is not allowed": (
        lambda d: set_in(d, "model", name="cnn"),
        "needs images|none of logistic, mlp",
    ),
    "a method that is not allowed": (
        lambda d: set_in(d, "training", method="ae-dpfl"),
        "method 'ae-dpfl' is none of",
    ),
    "no noise": (lambda d: set_in(d, "training", method="fedavg"), "none of|no noise"),
    "rounds without end": (
        lambda d: set_in(d, "training", rounds=1_000_000),
        "1,000,000 rounds, at most 10",
    ),
    "less noise than the budget allows": (
        lambda d: replace(set_in(d, "privacy", noise_multiplier=0.05), epsilon=1e9),
        "policy refuses: epsilon .* at most 60 a run",
    ),
    "a delta that hides nothing": (
        lambda d: replace(set_in(d, "privacy", delta=0.3), delta=1.0),
        "delta .* at most 1e-05",
    ),
    "an understated epsilon": (
        lambda d: replace(d, epsilon=0.1),
        r"the hub states epsilon 0\.1 .* this site computes",
    ),
    "a simulation": (lambda d: replace(d, recipe={**d.recipe, "seed": 1}), "simulation"),
    "a part that the hub vouches for": (
        lambda d: set_in(d, "privacy", trusted_parts=["hub.noise:Silent"]),
        "privacy.trusted_parts",
    ),
    "a sum without masks": (
        lambda d: set_in(d, "aggregation", secure="ideal"),
        "aggregation.secure: across machines sums are masked; set it to 'masked'",
    ),
    "a hub that calls itself honest": (
        lambda d: set_in(d, "aggregation", sparse=True, honest_server=True),
        "it takes the hub to be honest",
    ),
    "a look at the site's disk": (
        lambda d: set_in(set_in(d, "data", file="/etc/passwd"), "privacy", tuned_on=["/etc/x"]),
        "data, engine and evaluation are each party's own",
    ),
    "a look at the site's disk for a start": (
        lambda d: set_in(d, "model", start="/etc/passwd"),
        "model.start names a file, and not its SHA-256",
    ),
    "a network of the hub's choice": (
        lambda d: set_in(d, "model", backbone="os:getcwd"),
        "model.backbone",
    ),
    "a network of unknown origin": (
        lambda d: set_in(d, "model", backbone="5a" * 32),
        "allow.backbones",
    ),
    "weights of unknown origin": (
        lambda d: set_in(d, "model", start="5a" * 32),
        "weights of SHA-256 (5a){32}, which this site has not",
    ),
    "central trust": (central, "it asks for central trust, not local, distributed"),
    "more honest shares than there are sites": (
        lambda d: set_in(d, "aggregation", min_honest=9),
        "min_honest",
    ),
    "a forged roster": (forged_roster, "device 2: another identity is pinned"),
    "a roster with a site missing": (
        lambda d: replace(d, cards=d.cards[:2]),
        "key cards of 2 sites, need all",
    ),
    "a site made up": (
        lambda d: replace(d, facts=replace(d.facts, sizes=(1, 1, 1, 1))),
        "4 sites, the members' list has 3",
    ),
    "another federation": (
        lambda d: replace(d, facts=replace(d.facts, name="others")),
        "federation 'others'",
    ),
    "another schema": (
        lambda d: replace(d, facts=replace(d.facts, input_shape=(7,))),
        "schema does not fit",
    ),
    "a schema of the same shape that nobody has agreed to": (
        lambda d: replace(d, facts=replace(d.facts, agreement="00" * 32)),
        "schema is not the one that this site has agreed to",
    ),
    "records counted where clients are protected": (
        lambda d: replace(d, facts=replace(d.facts, sizes=(20, 27, 34))),
        "another number of records",
    ),
    "another version": (lambda d: replace(d, version="0.0.1"), "made by fedveil 0.0.1"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_in_the_plan_is_refused_with_its_reason(lie: str, made: World) -> None:
    change, reason = LIES[lie]
    honest = document_of(made)
    reply = propose(made, change(honest))
    assert reply.header["status"] == "refused", lie
    assert re.search(reason, reply.header["reason"]), reply.header["reason"]
    assert propose(made, honest).header["status"] == "done"  # the truth is accepted
    assert made.guards["site-0"].store.ledger.spent() == 0


def test_an_unsigned_plan_is_refused(made: World) -> None:
    plan = Message({"kind": "plan"}, (document_of(made).to_bytes(),))
    reply = ask(made, 0, plan, Ed25519PrivateKey.generate())
    assert reply.header == {
        "status": "refused",
        "reason": "message: not signed by anybody who may send it",
    }


def test_a_run_beyond_the_lifetime_budget_is_refused(tmp_path: Path) -> None:
    made = world(tmp_path, lifetime=10.0)
    try:
        reply = propose(made, document_of(made))
        assert reply.header["reason"] == "this site's lifetime budget does not allow it"
    finally:
        made.close()


def accepted(made: World, document: PlanDocument) -> list[bytes]:
    return [propose(made, document, site).part() for site in range(3)]


def begin(made: World, document: PlanDocument, signatures: list[bytes], site: int = 0) -> Message:
    header = {"kind": "begin", "run": document.digest}
    return ask(made, site, Message(header, tuple(signatures)))


def test_other_plans_for_other_sites_are_refused(made: World) -> None:
    one, other = document_of(made), document_of(made, training__rounds=3)
    signatures = [propose(made, one, 0).part(), *(propose(made, other, n).part() for n in (1, 2))]
    for document in (one, other):
        site = 0 if document is one else 1
        reply = begin(made, document, signatures, site)
        assert "has not accepted this plan: it was shown another" in reply.header["reason"]
    opened = ask(made, 0, Message({"kind": "open", "run": one.digest, "round": 0}, (b"",)))
    assert "not begun" in opened.header["reason"]


def server_of(made: World, document: PlanDocument) -> Server:
    sums = planned(document.parsed(), document.facts.federation()).secure_sums
    assert sums is not None
    roster = Roster(made.members.secagg_name, made.members.pinned)
    roster.admit(*document.key_cards)
    return Server(made.key, roster, sums.params)


def test_inflated_honest_shares_in_a_round_are_refused(made: World) -> None:
    document = document_of(made)
    signatures = accepted(made, document)
    assert begin(made, document, signatures).header["status"] == "done"
    plan = planned(document.parsed(), document.facts.federation())
    terms = document.terms(plan)["update"]
    mechanism: Any = terms.release.mechanism
    inflated = replace(mechanism, share_std=mechanism.share_std * 2)
    lies = {
        "more noise than is added": replace(
            terms, release=replace(terms.release, mechanism=inflated)
        ),
        "more honest shares than were accepted": replace(
            terms, privacy_model=replace(terms.privacy_model, honest_shares=9)
        ),
        "another run": replace(terms, run="elsewhere"),
        "no cost at all": None,
    }
    for lie in lies.values():
        width, bits = mechanism.dimension, 32
        opened = server_of(made, document).open(0, range(3), width, bits, privacy=lie)
        reply = ask(
            made,
            0,
            Message(
                {"kind": "open", "run": document.digest, "round": 0, "purpose": "update"},
                (opened.plan,),
            ),
        )
        assert "other noise or honest shares than the plan" in reply.header["reason"]
    assert made.guards["site-0"].store.ledger.spent() == 0


def test_a_replayed_round_is_refused_even_after_a_restart(made: World, tmp_path: Path) -> None:
    """Every frame of a finished run is shown again: nothing new leaves, nothing is paid twice."""
    heard: dict[bytes, bytes] = {}
    guard = made.guards["site-0"]
    made.courier.detach("site-0")

    def listen(frame: bytes) -> bytes:
        heard[frame] = guard.answer(frame)
        return heard[frame]

    made.courier.attach("site-0", listen)
    run = made.hub().start(recipe_of(), facts_of(made.data), tmp_path / "run")
    run.finish()
    spent = guard.store.ledger.spent()
    said = {frame: guard.answer(frame) for frame in heard}

    identity = [made.members.sites["site-0"]]
    first = [f for f in heard if unseal(f, [made.members.hub]).header.get("round") == 0]
    for frame in first:  # of a round that is over; with its last answer the next one was joined
        last = unseal(frame, [made.members.hub]).header["kind"] == "unmask"
        refused = unseal(said[frame], identity, frame).header["status"] == "refused"
        assert said[frame] == heard[frame] if last else refused

    again = made.guard("site-0")
    for frame in heard:
        reply = unseal(again.answer(frame), identity, frame)
        kind = unseal(frame, [made.members.hub]).header["kind"]
        done = kind in ("hello", "plan", "begin")
        assert (reply.header["status"] == "done") is done, (kind, reply.header)
    assert again.store.ledger.spent() == spent > 0


BY_TURNS = {"training__sampling": "round-robin", "training__cohort": 3, "training__rounds": 4}


def test_a_round_out_of_turn_or_with_another_cohort_is_refused(tmp_path: Path) -> None:
    made = world(tmp_path, sites=4)
    try:
        document = document_of(made, **BY_TURNS)
        signatures = [propose(made, document, site).part() for site in range(4)]
        assert begin(made, document, signatures).header["status"] == "done"
        plan = planned(document.parsed(), document.facts.federation())
        terms: Any = document.terms(plan)["update"]
        width = terms.release.mechanism.dimension
        for number, members, reason in (
            (1, (0, 1, 2), "the round has another cohort"),  # 3, 0 and 1 are due
            (3, (0, 1, 2), "round 4 is not this site's turn"),  # 1, 2 and 3 are
        ):
            opened = server_of(made, document).open(number, members, width, 32, privacy=terms)
            header = {"kind": "open", "run": document.digest, "round": number, "purpose": "update"}
            reply = ask(made, 0, Message(header, (opened.plan,)))
            assert reason in reply.header["reason"]
        assert made.guards["site-0"].store.ledger.spent() == 0
    finally:
        made.close()


def test_turns_closer_than_the_owner_allows_are_refused(tmp_path: Path) -> None:
    policy = {**POLICY, "allow": {**POLICY["allow"], "separation": 2}}
    made = world(tmp_path, sites=4, policy=policy)
    try:
        reply = propose(made, document_of(made, **BY_TURNS))
        assert "turns 1 rounds apart, at least 2" in reply.header["reason"]
    finally:
        made.close()


def test_plans_without_end_take_no_memory_without_end(made: World) -> None:
    guard = made.guards["site-0"]
    for number in range(MOST_RUNS + 3):
        document = replace(document_of(made), run=str(number))
        assert propose(made, document).header["status"] == "done"
    assert len(guard._runs) == MOST_RUNS
    guard._plans.extend([monotonic()] * MOST_PLANS)
    refused = propose(made, replace(document_of(made), run="one more"))
    assert "plans in an hour" in refused.header["reason"]


def test_a_round_beyond_the_plan_is_refused(made: World) -> None:
    document = document_of(made)
    assert begin(made, document, accepted(made, document)).header["status"] == "done"
    plan = planned(document.parsed(), document.facts.federation())
    terms: Any = document.terms(plan)["update"]
    width = terms.release.mechanism.dimension
    opened = server_of(made, document).open(2, range(3), width, 32, privacy=terms)
    header = {"kind": "open", "run": document.digest, "round": 2, "purpose": "update"}
    reply = ask(made, 0, Message(header, (opened.plan,)))
    assert reply.header["status"] == "refused"
    assert "the plan has 2" in reply.header["reason"]


def test_the_hub_is_told_why_and_no_run_is_made(tmp_path: Path) -> None:
    policy = {**POLICY, "budget": {"epsilon": 1.0}}
    made = world(tmp_path, policy=policy)
    try:
        with pytest.raises(PrivacyRefusal, match=r"site-2: .*policy refuses: epsilon .* at most 1"):
            made.hub().start(recipe_of(), facts_of(made.data), tmp_path / "run")
        assert not (tmp_path / "run").exists()
    finally:
        made.close()


TRACKED = {"privacy__clip_quantile": 0.5, "privacy__clip_noise": 0.5}


def opened_under(made: World, site: int, document: PlanDocument, told: float) -> Message:
    """The first round opened at a site, under the clip that it is told."""
    plan = planned(document.parsed(), document.facts.federation())
    terms = document.terms(plan)["update"]
    mechanism: Any = terms.release.mechanism
    opened = server_of(made, document).open(0, range(3), mechanism.dimension, 32, privacy=terms)
    header = {"kind": "open", "run": document.digest, "round": 0, "purpose": "update"}
    return ask(made, site, Message({**header, "clip": told}, (opened.plan,)))


def test_sites_told_different_clips_are_not_in_one_sum(made: World) -> None:
    """Grids are powers of two: just below twice the first clip, integers are nearly twice as long.
    Beside others on the first grid, whose noise is in integers too, half the noise was missing."""
    document = document_of(made, **TRACKED)
    signatures = accepted(made, document)
    for site in range(3):
        assert begin(made, document, signatures, site).header["status"] == "done"
    rule: Any = planned(document.parsed(), document.facts.federation()).method.clip_rule
    first = rule.initial.norm
    assert opened_under(made, 0, document, first).header["status"] == "done"
    for told in (first * 2.0 ** (7 / 8), first / 2.0 ** (1 / 8)):
        reply = opened_under(made, 1, document, told)
        assert "another clip than this site is told" in reply.header.get("reason", "")
    header = {"kind": "train", "run": document.digest, "round": 0, "purpose": "update"}
    later = ask(made, 0, Message({**header, "clip": 2 * first}, (b"", b"")))
    assert "opened under another clip" in later.header["reason"]


def test_requests_about_a_round_do_not_fill_the_memory(made: World) -> None:
    document = document_of(made)
    assert begin(made, document, accepted(made, document)).header["status"] == "done"
    terms = document.terms(planned(document.parsed(), document.facts.federation()))["update"]
    mechanism: Any = terms.release.mechanism
    opened = server_of(made, document).open(0, range(3), mechanism.dimension, 32, privacy=terms)
    header = {"kind": "open", "run": document.digest, "round": 0, "purpose": "update", "clip": None}

    def again(n: int) -> Message:
        return ask(made, 0, Message({**header, "n": n}, (opened.plan,)))

    said = [again(n).header for n in range(MOST_REQUESTS + 1)]
    assert said[0]["status"] == "done"
    assert said[-1]["reason"] == "100 requests about one round: go on with the next one"
    assert again(0).header["status"] == "done"  # as before


def test_why_training_fails_is_not_told(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason may depend on rows: the hub hears a constant, and the round is paid for."""
    document = document_of(
        made, training__method="client-noise", training__batch_size=None, aggregation__secure=None
    )
    assert begin(made, document, accepted(made, document)).header["status"] == "done"
    header = {"kind": "train", "run": document.digest, "purpose": "update", "clip": None}
    for number, kind in enumerate((ConfigError, ZeroDivisionError)):

        def fail(*args: object, kind: type[Exception] = kind) -> None:
            raise kind("patient 17 has no age")

        monkeypatch.setattr(Training, "_trained", fail)
        reply = ask(made, 0, Message({**header, "round": number}, (b"", b"")))
        assert reply.header["reason"] == "this site could not compute its part"
    assert made.guards["site-0"].store.ledger.runs() == {document.digest: 2}


STRANGE = (math.nan, math.inf, -math.inf, 3.4e38, -3.4e38, 1e-45, 1e30)


@pytest.mark.parametrize("model", [{}, {"model__name": "mlp", "model__hidden": [5]}])
def test_no_weights_make_training_fail(model: dict[str, Any], made: World) -> None:
    """Whether it fails would tell of the rows, without noise."""
    given = {
        "training__method": "client-noise",
        "training__batch_size": None,
        "aggregation__secure": None,
        **model,
    }
    document = document_of(made, training__rounds=len(STRANGE), **given)
    assert begin(made, document, accepted(made, document)).header["status"] == "done"
    size = planned(document.parsed(), document.facts.federation()).layout.size
    header = {"kind": "train", "run": document.digest, "purpose": "update", "clip": None}
    for number, strange in enumerate(STRANGE):
        weights = np.resize(np.array([strange, 1.0, -strange], "<f4"), size).tobytes()
        status = "working"
        while status == "working":
            reply = ask(made, 0, Message({**header, "round": number}, (b"", weights)))
            status = reply.header["status"]
        assert status == "done", (strange, reply.header)


@pytest.mark.parametrize("secure", [True, False])
def test_one_model_is_trained_in_a_round(
    secure: bool, made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub that shows other weights in the same round learns nothing of what they would do."""
    guard, trained, said = made.guards["site-0"], list[int](), list[str]()
    inner = Training._trained

    def counted(work: Training, data: bytes, updates: Any) -> Any:
        trained.append(work._number)
        return inner(work, data, updates)

    def lie(frame: bytes) -> bytes:
        honest, asked = guard.answer(frame), unseal(frame, [made.members.hub])
        if asked.header["kind"] == "train":
            first, weights, *rest = asked.parts
            ones = b"\x00\x00\x80\x3f" * (len(weights) // 4)
            other = Message(asked.header, (first, ones, *rest))
            said.append(ask(made, 0, other).header.get("reason", "trained"))
        return honest

    monkeypatch.setattr(Training, "_trained", counted)
    made.courier.detach("site-0")
    made.courier.attach("site-0", lie)
    method = {
        "training__method": "client-noise",
        "training__batch_size": None,
        "aggregation__secure": None,
    }
    recipe = recipe_of(training__rounds=1, model__input_norm=1.0, **({} if secure else method))
    made.hub().start(recipe, facts_of(made.data), tmp_path / "run").finish()
    assert said
    assert all(re.search("another model in this round|round 0", one) for one in said), said
    assert trained.count(0) == 1


@pytest.mark.parametrize(
    ("asked", "sizes", "reason"),
    [
        ({"angles": 10**9}, None, r"model\.angles: 1,000,000,000"),
        ({"scales": 2, "angles": 32}, None, r"model\.features: 4,356 for one example; sites take"),
        ({"scales": 9}, None, "9 octaves are 512 pixels"),
        ({"scales": 1, "angles": 2}, (10, 2**39, 2**39), "another number of records"),
    ],
)
def test_features_cost_a_site_no_more_than_its_images(
    asked: dict[str, Any], sizes: tuple[int, ...] | None, reason: str, tmp_path: Path
) -> None:
    """Neither by what is worked out of one image, nor by rows that other sites are said to have."""
    made = world(tmp_path, data=image_rows())
    try:
        given = {"model__features": "scattering", "model__scales": 1, "model__angles": 2}
        honest = document_of(made, **given)
        lie = set_in(honest, "model", **asked)
        facts = honest.facts if sizes is None else replace(honest.facts, sizes=sizes)
        assert re.search(reason, propose(made, replace(lie, facts=facts)).header["reason"])
        assert propose(made, honest).header["status"] == "done"
    finally:
        made.close()


def test_fewer_colluders_than_the_owner_insists_on_are_refused(tmp_path: Path) -> None:
    made = world(tmp_path, sites=4, policy={**POLICY, "cohort": {"colluders": 1, "minimum": 4}})
    try:
        lie = document_of(made, privacy__colluders=0)
        reply = propose(made, lie)
        assert "allows for 0 colluding sites, need 1" in reply.header["reason"]
        assert propose(made, document_of(made, privacy__colluders=1)).header["status"] == "done"
    finally:
        made.close()


def test_a_cohort_smaller_than_the_owner_insists_on_is_refused(tmp_path: Path) -> None:
    made = world(tmp_path, policy={**POLICY, "cohort": {"minimum": 4, "honest_shares": 4}})
    try:
        reason = propose(made, document_of(made)).header["reason"]
        assert "a cohort of 3, need 4" in reason
        assert "sums of 3 honest sites, need 4" in reason
    finally:
        made.close()


def test_facts_hold_whole_numbers() -> None:
    for wrong in ({"sizes": ()}, {"input_shape": (-1,)}, {"task": "votes"}, {"classes": -1}):
        good: dict[str, Any] = {
            "name": "f",
            "task": "classification",
            "classes": 2,
            "input_shape": (3,),
            "sizes": (1, 1, 1),
        }
        with pytest.raises(ConfigError):
            Facts(**{**good, **wrong})


def test_two_lists_with_one_fingerprint_are_too_many_to_try(made: World) -> None:
    """A hub that makes up keys for two lists looks for a collision, not for a given list: that
    takes the square root of all fingerprints, and must be out of reach (2^100)."""
    digits = made.members.fingerprint.replace("-", "")
    assert len(bytes.fromhex(digits)) * 8 >= 200


def test_correlated_noise_is_refused_before_anything_is_paid() -> None:
    with pytest.raises(ConfigError, match=r"privacy\.correlated: sites pay round by round"):
        planned(
            recipe_of(
                training__method="dp-fedavg",
                privacy__trust="central",
                aggregation__secure=None,
                privacy__correlated="square-root",
                training__sampling="round-robin",
                training__cohort=3,
                training__rounds=4,
            ),
            facts_of(rows(6)).federation(),
        )


def test_whitening_large_images_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds two thousand pictures' features at once: here a gigabyte, and copies of it."""
    monkeypatch.setattr(plan_document, "with_features", lambda federation, chosen: federation)
    facts = Facts("hospitals", "classification", 2, (64, 64, 3), (1, 1, 1))
    with pytest.raises(ConfigError, match=r"model.whiten: 62,208 for one"):
        plan_document.seen(ModelSection(features="scattering", whiten="leaves"), facts.federation())
    small = replace(facts, input_shape=(32, 32, 3))  # CIFAR-10's, of which recipes are
    plan_document.seen(ModelSection(features="scattering", whiten="leaves"), small.federation())


def test_patches_beyond_a_site_s_memory_are_refused_before_they_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_document, "with_features", lambda federation, chosen: federation)
    facts = Facts("hospitals", "classification", 2, (128, 128, 3), (1, 1, 1))
    plan_document.seen(ModelSection(features="patches"), facts.federation())
    for model, shape, said in (
        (
            ModelSection(features="patches", patches=257),
            (128, 128, 3),
            "patches: 4,210,688",
        ),
        (ModelSection(features="patches", directions=4096), (32, 32), "directions: 4,096"),
        (ModelSection(features="patches"), (7,), "patches needs images"),
    ):
        with pytest.raises(ConfigError, match=said):
            plan_document.seen(model, replace(facts, input_shape=shape).federation())


def test_random_features_beyond_a_site_s_memory_are_refused_before_they_are_drawn() -> None:
    facts = Facts("hospitals", "classification", 2, (100,), (1, 1, 1))
    with pytest.raises(ConfigError, match=r"model.width: 100,000,000,000 for one"):
        plan_document.seen(ModelSection(features="random", width=10**9), facts.federation())

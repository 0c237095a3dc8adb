"""What a recipe may say: one dataclass for every section of the TOML file.

The comment behind a key is its description in docs/recipes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedveil.core.arguments import check_fields, count, optional, plain_numbers, positive


@dataclass(frozen=True)
class DataSection:
    source: str = "digits"  # a name from `fedveil data list`; not used when `file` is set
    file: str | None = None  # CSV or Parquet; a folder or pattern: a file a client, or pictures
    client_column: str | None = None
    person_column: str | None = None  # of a person with several rows, at whatever clients
    records_per_person: int | None = None  # rows of a person that count at most; public
    epsilon_column: str | None = None  # follows from privacy.epsilon_column
    label: str | None = None
    label_separator: str | None = None  # between the classes of a cell that names any number
    schema: str | None = None  # public statistics of the file's columns
    statistics: str | None = None  # without a schema: bought, or data (then nothing is certified)
    classes: tuple[str, ...] = ()  # of the label, where they are public
    columns: Mapping[str, Any] = field(default_factory=dict, hash=False)  # a schema, in place
    bought: Mapping[str, Any] = field(default_factory=dict, hash=False)  # what `columns` have cost
    bins: int | None = None  # numbers of a table are cut into about so many bins; None: they stay
    text_columns: tuple[str, ...] = ()  # free text of a table, a vector each by a public encoder
    text_encoder: str | None = None  # transformers:FOLDER, FILE.py:function, ...; None: MiniLM
    file_labels: str | None = None  # of a folder of files: a table of each file and its class
    image_size: tuple[int, ...] = ()  # pictures become this high and wide; a third 1: grey
    task: str | None = None  # classification, regression or multi-label; None: by the label
    partition: str | None = None  # iid, dirichlet, sorted or owner; None: the source's own
    clients: int | None = None
    alpha: float | None = None  # concentration of the Dirichlet partition
    examples_per_client: int | None = None
    cap: int | None = None  # most examples a client keeps
    test_file: str | None = None  # rows to test on, instead of some that are held out
    test_fraction: float | None = None  # None: the source's own test part, or a fifth
    holdout: str | None = None  # within, latest, pooled or clients; None: the source's, or within
    public_fraction: float | None = None  # set aside as public, unlabelled inputs to vote on
    directory: str | None = None  # where local copies of the data sets are
    seed: int = 0  # of the partition; public


@dataclass(frozen=True)
class ModelSection:
    name: str = "auto"  # auto: linear or logistic regression, by task
    hidden: tuple[int, ...] = ()  # widths of hidden layers, or rows of tables (ngrams)
    input_norm: float | None = None  # of a linear model: longer inputs are shortened to it
    features: str | None = None  # instead of inputs: scattering, patches, random or backbone
    scales: int | None = None  # of scattering: octaves; each halves height and width; None: 2
    angles: int | None = None  # of scattering: orientations of its wavelets; None: 8
    order: int | None = None  # of scattering: 0, 1 or 2 wavelets in a row at most; None: 2
    patches: int | None = None  # of patches: how many an image is compared with; None: 256
    mirror: bool | None = None  # of patches: an image and its mirror image are alike; None: no
    whiten: str | None = None  # of both: by what tells drawings apart, strokes or leaves
    directions: int | None = None  # of whitening: how many features are kept; None: 800
    width: int | None = None  # of random features: how many; None: 1000
    bandwidth: float | None = (
        None  # of random features: of their kernel, in inputs' units; None: 10
    )
    backbone: str | None = None  # a frozen public network: timm:NAME, package.module:function, ...
    backbone_weights: str | None = None  # a file of its weights, where it comes without
    backbone_head: str | None = None  # its own classifier, a layer that is left out
    pixels: int | None = None  # height and width of the pictures it sees; None: its own
    start: str | None = None  # a safetensors file of public weights to start from
    frozen: tuple[str, ...] = ()  # layers by name, not "!NAME"; or "backbone": all but the last
    adapter_rank: int | None = None  # train adapters of this rank beside the frozen layers
    seed: int = 0  # of the initial weights and random features; public


@dataclass(frozen=True)
class TrainingSection:
    method: str = "dp-fedavg"  # left out beside `privacy.unit = "record"`: dp-sgd
    rounds: int = 50
    sampling: str | None = None  # None: the method's own
    cohort: int | None = None  # (expected) clients in a round
    rate: float | None = None  # or their share of the population
    cohort_cap: int | None = None
    local_steps: int | None = None
    local_epochs: int | None = None
    batch_size: int | None = None  # None: all of a client's; at record level 2,048 at most
    batches: str | None = (
        None  # poisson (secret coins, lower epsilon) or shuffled; None: see dp-sgd
    )
    batch_rate: float | None = None  # poisson: probability of a record; None: from batch_size
    learning_rate: float = 0.1
    schedule: str = "constant"
    decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    weighting: str = "uniform"  # or examples: by each client's number of them
    weight_cap: int | None = None  # examples that count at most; a private weighting needs it
    class_weights: Mapping[str, float] = field(default_factory=dict, hash=False)  # public, by name
    penalty: float | None = None  # BLUR's lambda outside the clip; FedProx's everywhere
    sparsity: float | None = None  # LUS: share of each tensor's update set to zero
    upload: str = "dense"  # sparse uploads are refused where noise must cover all coordinates


@dataclass(frozen=True)
class PrivacySection:
    epsilon: float | None = None
    delta: float | None = None  # None: min(1e-5, units^-1.1)
    noise_multiplier: float | None = None  # instead of epsilon
    budgets: Mapping[str, float] = field(default_factory=dict, hash=False)  # clients' own epsilons
    epsilon_column: str | None = None  # of a table: persons', or clients', own epsilons
    clip_norm: float | None = None  # None: 1 at first, lower where updates are shorter
    noise: str = "gaussian"  # or laplace, beside a clip in L1
    trust: str | None = None  # central, local or distributed; None: the method's own
    unit: str | None = None  # record (one row), person or client (all rows); None: the method's own
    sites_per_person: int | None = None  # clients at which a person may be; None: 1
    adjacency: str | None = None  # add-remove, replace or zero-out; None: the proof's own
    public_clients: int | None = None  # declared, not counted: hides that a client is there at all
    colluders: int = 0  # clients that work with the adversary and bring no noise
    honest_shares: int | None = None  # noise shares sure to arrive, if fewer than the cohort
    rotate: bool = False  # rotate and round updates before a secure sum, as ddgauss does
    bits: int | None = None  # of the modulus of a rotated sum; None: as few as it takes
    clip_quantile: float | None = None  # the clip follows this quantile of the update norms
    clip_rate: float = 0.2  # how fast; 0 only releases the share within the clip
    clip_noise: float | None = None  # on the count, of the cohort; None: 0.05 or 2 % of the noise
    clip_highest: float | None = None  # that a clip may follow it to; None: any
    correlated: str | None = None  # optimised or square-root: noise partly cancels between rounds
    bands: int | None = None  # rounds that it spans; None: from a client's turn to its next
    arithmetic: str | None = None  # exact or idealised; None: exact without a seed
    trusted_parts: tuple[str, ...] = ()  # "package.module:Class" of others that you vouch for
    tuned_on: tuple[str, ...] = ()  # what settings were tried out on: public, or not certified


@dataclass(frozen=True)
class AggregationSection:
    """Secure sums. `aggregation = "secure"` is short for `secure = "ideal"`, and `"masked"` for
    `secure = "masked"`. A method whose `privacy.trust` is left open is then under distributed
    trust.
    """

    secure: str | None = None  # masked, ideal or none; None: ideal under distributed trust
    dropout: float = 0.0  # probability with which each device is lost in a round; simulated
    max_dropout: float | None = None  # share of a cohort that may be lost; None: as dropout needs
    min_honest: int | None = None  # honest noise shares in every sum; None: all that must arrive
    sparse: bool = False  # mask with some neighbours, whom an honest server draws
    honest_server: bool = False  # the server keeps to the protocol, and nobody checks it


@dataclass(frozen=True)
class ServerSection:
    optimizer: str = "sgd"  # sgd, adam or yogi
    learning_rate: float = 1.0
    momentum: float = 0.0
    schedule: str = "constant"  # linear, cosine or inverse-sqrt: how the rate falls
    schedule_setting: float | None = None  # share left at the end 0, or rounds 10 (inverse-sqrt)
    average: str | None = None  # exponential, tail, polynomial or none: of the released weights
    average_setting: float | None = None  # decay 0.9, share of the rounds 0.5, or power 8
    smoothing: float | str = 0.0  # strength of Laplacian smoothing; 0: none; auto: by the releases
    smoothing_flat: bool = False  # the whole update as one ring, instead of tensor by tensor
    smoothing_order: str = "out-in-kernel"  # which weights of a convolution are neighbours
    smoothing_place: str = "after-noise"


@dataclass(frozen=True)
class Voting:
    """How the shared model learns from clients' votes on public inputs (ae-dpfl)."""

    questions: int | None = None  # public inputs to label; None: all
    epochs: int = 100  # of training on the winners
    batch_size: int = 64
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        plain_numbers(self)
        counts = {"questions": optional(count), "epochs": count, "batch_size": count}
        check_fields(self, "voting.", learning_rate=positive, **counts)


@dataclass(frozen=True)
class EvaluationSection:
    every: int | None = None  # rounds; None: about twenty times a run
    baseline: bool = False  # also train without privacy and compare


@dataclass(frozen=True)
class EngineSection:
    """Speed only: nothing here can change what is guaranteed. With an engine from outside the
    package nothing is certified.
    """

    name: str = "auto"
    chunk: int | None = None  # clients trained together
    processes: int | None = None  # None: several if rounds are long enough
    threads: int | None = None  # of each process
    device: str | None = None  # cpu or cuda; None: cpu


@dataclass(frozen=True)
class Recipe:
    """Everything that a TOML recipe may say; what is left out has its default."""

    seed: int | None = None  # None: a protected run, noise from the operating system
    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    training: TrainingSection = field(default_factory=TrainingSection)
    method: Mapping[str, Any] = field(default_factory=dict, hash=False)  # the method's own keys
    privacy: PrivacySection = field(default_factory=PrivacySection)
    aggregation: AggregationSection = field(default_factory=AggregationSection)
    server: ServerSection = field(default_factory=ServerSection)
    voting: Voting = field(default_factory=Voting)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    engine: EngineSection = field(default_factory=EngineSection)

"""pretrain: a biLM trained on shards and a vocabulary, under Ray Train."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elmo.io.folders import local_folder
from elmo.io.location import Location
from elmo.io.records import digest
from elmo.settings import ModelShape, NetworkSettings

from ..report.phrases import unigram_phrase, unknown_words_remark
from ..settings.cluster import Cluster
from ..settings.params import PretrainSettings
from ..terminal.progress import show_activity
from .stage import CURVES_ARGUMENT, OUT_ARGUMENT, Argument, Stage

if TYPE_CHECKING:
    from elmo.data.characters import Characters
    from elmo.data.vocabulary import Vocabulary

    from .training import PreparedJob, RunSettings

_UNCHANGED_SUMMARY = "skipped: the trained model is used unchanged"

STAGE = Stage(
    name="pretrain",
    version=7,
    help="Train a bidirectional language model on SHARDS.",
    inputs=(Argument("shards"), Argument("vocab")),
    outputs=(OUT_ARGUMENT, CURVES_ARGUMENT),
    run=lambda params, **arguments: run(params=params.pretrain, **arguments),
    summary=lambda figures, _: summary(figures),
    describe_score=lambda figures, started_from: describe_score(figures, started_from),
    figure_by_metric={
        "perplexity_lower_better": "heldout_perplexity",
        "times_below_unigram_higher_better": "times_below_unigram",
    },
    uses_cluster=True,
    has_precision=True,
)


@dataclass(frozen=True)
class PretrainJob:
    """The inputs of pretraining, which are sent to each worker: the folders of the shards and the
    vocabulary, and the shape of the network."""

    shards: Location
    vocab: Location
    network: NetworkSettings

    def prepare(self, settings: "RunSettings") -> "PreparedJob":
        """Return the training job, with a new model initialized from the seed."""
        from elmo.data.shards import Shards
        from elmo.nn.bilm import BiLM
        from elmo.nn.softmax import new_softmax
        from elmo.train.job import TrainingJob

        from .training import PreparedJob

        training = settings.training
        shape = ModelShape(**asdict(self.network), input_words=None)
        characters, vocabulary = _read_vocabulary(self.vocab, shape)
        bilm = BiLM(shape, character_count=characters.size)
        bilm.reset_parameters(training.seed)
        job = TrainingJob(
            bilm=bilm,
            softmax=new_softmax(len(vocabulary), shape.projection, seed=training.seed + 1),
            vocabulary=vocabulary,
            characters=characters,
            shards=Shards(self.shards),
            settings=training,
            folder=settings.folder,
            checkpointing=settings.checkpointing,
            stop_flag=settings.stop_flag,
        )
        return PreparedJob(job, "general", job.shards.tokenization)


def run(
    shards: Location,
    vocab: Location,
    out: Location,
    params: PretrainSettings,
    *,
    curves: Path,
    work: Location,
    cluster: Cluster,
) -> dict[str, float]:
    """Pretrain on the training split of `shards`; write the model folder `out`, return the figures.

    If `params` names a model, it is copied, and only its perplexity is measured. `vocab` is the
    folder of the vocabulary, `curves` the folder for the tables of losses. A killed run resumes
    from `work`.
    """
    from elmo.data.shards import Shards

    if params.model:
        return _copy_named_model(shards, out, params, curves)
    from . import training

    inputs = {"corpus": Shards(shards).digest, "vocabulary": vocabulary_digest(vocab)}
    # Invalid inputs are refused before an MLflow run is opened.
    _read_vocabulary(vocab, ModelShape(**asdict(params.network), input_words=None))
    result = training.train(
        STAGE,
        params,
        PretrainJob(shards, vocab, params.network),
        inputs=inputs,
        sources={"corpus": shards, "vocabulary": vocab},
        out=out,
        curves=curves,
        work=work,
        cluster=cluster,
    )
    figures = _name_figures(result.figures_after["general"])
    return figures | {"steps": result.steps, "tokens_seen": result.tokens}


def _name_figures(heldout: dict[str, float | None]) -> dict[str, float]:
    """Return the held-out figures under their names in the stage's figures."""
    names = {
        "heldout_perplexity": "average",
        "heldout_forward": "forward",
        "heldout_backward": "backward",
        "heldout_tokens": "tokens",
        "heldout_unk_rate": "unk_rate",
        "heldout_bits_per_byte": "bits_per_byte",
        "unigram_perplexity": "unigram",
    }
    figures = {
        name: value for name, key in names.items() if (value := heldout.get(key)) is not None
    }
    if "unigram_perplexity" in figures:
        times_below = figures["unigram_perplexity"] / figures["heldout_perplexity"]
        figures["times_below_unigram"] = times_below
    return figures


def _copy_named_model(
    shards: Location, out: Location, params: PretrainSettings, curves: Path
) -> dict[str, float]:
    """Copy the model that `params` names to `out`, write empty curves, and measure the model."""
    from elmo.data.shards import Shards
    from elmo.model.folder import copy_model, load_model
    from elmo.train.curves import write_empty_curves
    from elmo.train.perplexity import MAX_HELDOUT_TOKENS, perplexity

    opened_shards, model = Shards(shards), load_model(params.model)
    model.tokenizer.check_shards(opened_shards.tokenization, model=params.model, shards=shards)
    tokens = opened_shards.tokens("heldout")
    stride = -(-tokens // MAX_HELDOUT_TOKENS) or 1
    heldout = (
        shard.tokens(k)
        for shard in map(opened_shards.open, opened_shards.entries("heldout"))
        for k in range(0, len(shard), stride)
    )
    figures: dict[str, float | None] = {}
    if model.softmax is not None:
        show_activity(f"measuring {tokens // stride:,} held-out tokens")
        figures = perplexity(model, heldout).to_dict()
    copy_model(params.model, out)
    write_empty_curves(Location(curves))
    return _name_figures(figures)


def summary(figures: dict[str, float]) -> str:
    """Return the line that the stage prints, from the `figures` of `run`: held-out perplexity."""
    if "heldout_perplexity" not in figures:
        return f"{_UNCHANGED_SUMMARY}; it has no softmax, so no perplexity"
    prefix = "" if "steps" in figures else f"{_UNCHANGED_SUMMARY}; "
    text = f"{prefix}held-out perplexity {figures['heldout_perplexity']:.1f}"
    remark = unknown_words_remark(figures.get("heldout_unk_rate"))
    if "times_below_unigram" not in figures:
        return f"{text}{remark}"
    times_below = figures["times_below_unigram"]
    advice = "" if times_below >= 1 else "; train on more text or for more epochs"
    return (
        f"{text}, {unigram_phrase(times_below)} the unigram model's "
        f"{figures['unigram_perplexity']:.1f}{remark}{advice}"
    )


def describe_score(figures: dict[str, float], started_from: str = "") -> str:
    """Return a few words for the end of `elmo run`: the held-out perplexity.

    The text is empty for a model without a softmax, and for a model that was trained elsewhere,
    whose name is `started_from`.
    """
    if "heldout_perplexity" not in figures or started_from:
        return ""
    remark = unknown_words_remark(figures.get("heldout_unk_rate"))
    return f"perplexity {figures['heldout_perplexity']:.1f} on held-out general text{remark}"


def _read_vocabulary(folder: Location, shape: ModelShape) -> "tuple[Characters, Vocabulary]":
    """Read a vocabulary folder; raise `ElmoError` if it is damaged, or if a filter in `shape` is
    wider than a token."""
    from elmo.data.characters import Characters
    from elmo.data.vocabulary import Vocabulary
    from elmo.model.folder import check_filter_widths

    with local_folder(folder) as local:
        characters, vocabulary = Characters.load(local / "characters.json"), Vocabulary.load(local)
    check_filter_widths(shape, characters, source="pretrain.network.filters")
    return characters, vocabulary


def vocabulary_digest(folder: Location) -> str:
    """Return a digest of the files in a vocabulary folder."""
    names = ("words.txt", "counts.txt", "characters.json")
    return digest({name: folder.sha256(name) for name in names if folder.exists(name)})

"""finetune: a model trained further on domain text, with perplexities before and after."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from elmo.errors import ElmoError
from elmo.io.location import Location

from ..report.phrases import unknown_words_remark
from ..settings.cluster import Cluster
from ..settings.params import FinetuneSettings
from .stage import CURVES_ARGUMENT, OUT_ARGUMENT, Argument, Stage

if TYPE_CHECKING:
    from elmo.data.shards import Shards
    from elmo.data.vocabulary import Vocabulary
    from elmo.nn.softmax import Softmax

    from .training import PreparedJob, RunSettings, TrainingResult

STAGE = Stage(
    name="finetune",
    version=10,
    help="Fine-tune MODEL on the shards DOMAIN, and measure on GENERAL how much it forgets.",
    inputs=(Argument("model"), Argument("domain"), Argument("general")),
    outputs=(OUT_ARGUMENT, CURVES_ARGUMENT),
    run=lambda params, **arguments: run(params=params.finetune, **arguments),
    summary=lambda figures, _: summary(figures),
    figure_by_metric={
        "perplexity_lower_better": "domain_perplexity_after",
        "gain_share_higher_better": "domain_gain",
    },
    product="model {out}",
    describe_score=lambda figures, started_from: describe_score(figures, started_from),
    uses_cluster=True,
    has_precision=True,
)


@dataclass(frozen=True)
class FinetuneJob:
    """The inputs of fine-tuning, which are sent to each worker: a model folder and two folders of
    shards. The model is trained on `domain`, and only measured on `general`.
    """

    model: Location
    domain: Location
    general: Location
    params: FinetuneSettings

    def prepare(self, settings: "RunSettings") -> "PreparedJob":
        """Load the model and add the domain's words; return the training job."""
        from elmo.data.shards import Shards
        from elmo.model.folder import load_model
        from elmo.nn.softmax import new_softmax, restore_softmax
        from elmo.train.job import TrainingJob

        from .training import PreparedJob

        training, shards = settings.training, Shards(self.domain)
        parent = load_model(self.model)
        if parent.bilm.shape.input_words is not None:
            raise ElmoError(f"{self.model}: reads words, not characters; use another model")
        counts = _count_types(shards)
        vocabulary = _extend_vocabulary(parent.vocabulary, counts, self.params.new_words)
        words, projection = len(vocabulary), parent.bilm.shape.projection
        if parent.softmax is None:
            softmax = new_softmax(words, projection, seed=training.seed)
        else:
            softmax = restore_softmax(parent.softmax, word_count=words, seed=training.seed)
            init_new_words(softmax, vocabulary, counts, known_words=len(parent.vocabulary))
        job = TrainingJob(
            bilm=parent.bilm,
            softmax=softmax,
            vocabulary=vocabulary,
            characters=parent.characters,
            shards=shards,
            settings=training,
            folder=settings.folder,
            checkpointing=settings.checkpointing,
            stop_flag=settings.stop_flag,
        )
        general = replace(job, shards=Shards(self.general))
        return PreparedJob(
            job,
            "domain",
            parent.tokenizer,
            other_jobs={"general": general},
            measures_first=True,
            words_added=words - len(parent.vocabulary),
        )


def run(
    model: Location,
    domain: Location,
    general: Location,
    out: Location,
    params: FinetuneSettings,
    *,
    curves: Path,
    work: Location,
    cluster: Cluster,
) -> dict[str, float]:
    """Fine-tune `model` on the shards `domain`; write the model folder `out`, return the figures.

    Perplexity is measured before and after on the held-out splits of `domain` and `general`; the
    latter shows how much the model forgets. A model that was pretrained on `domain` is copied
    unchanged. `curves` is the folder for the tables of losses; a killed run resumes from `work`.
    """
    from elmo.data.shards import Shards
    from elmo.model.folder import load_model

    from . import training as train_job

    parent = load_model(model)
    for shards in (domain, general):
        parent.tokenizer.check_shards(Shards(shards).tokenization, model=model, shards=shards)
    heldout_figures = _find_pretraining_figures(parent.training, domain, general)
    if heldout_figures is not None:
        return _copy_pretrained(model, heldout_figures, out, curves)
    result = train_job.train(
        STAGE,
        params,
        FinetuneJob(model, domain, general, params),
        inputs={
            "corpus": Shards(domain).digest,
            "general": Shards(general).digest,
            "parent": parent.digest,
        },
        sources={"corpus": domain, "general": general, "parent": model},
        out=out,
        curves=curves,
        work=work,
        cluster=cluster,
    )
    return _collect_figures(result)


def _find_pretraining_figures(
    training: Mapping[str, Any], domain: Location, general: Location
) -> Mapping[str, Any] | None:
    """Return the held-out figures of pretraining if its text was that of `domain`, else None.

    Shards of the same files can differ: only those of the domain text have the kept columns.
    """
    from elmo.data.shards import Shards

    shards = [Shards(folder) for folder in (domain, general)]
    texts = [structs.replace(folder.manifest, shards=()) for folder in shards]
    is_same_text = texts[0] == texts[1] and texts[0].inputs
    digests = [folder.digest for folder in (shards if is_same_text else shards[:1])]
    if training.get("stage") != "pretrain" or training["inputs"].get("corpus") not in digests:
        return None
    figures: Mapping[str, Any] = training["perplexity"]["after"]["general"]
    return figures


def _copy_pretrained(
    model: Location, figures: Mapping[str, Any], out: Location, curves: Path
) -> dict[str, float]:
    """Copy the model to `out`, with empty curves; return the figures of pretraining."""
    from elmo.model.folder import copy_model
    from elmo.train.curves import write_empty_curves

    copy_model(model, out)
    write_empty_curves(Location(curves))
    return {
        "domain_perplexity_after": figures["average"],
        "domain_tokens": figures["tokens"] or 0,
        "domain_unk_rate": figures.get("unk_rate") or 0.0,
        "words_added": 0,
    }


def summary(figures: dict[str, float]) -> str:
    """Return the line that the stage prints, from the `figures` of `run`.

    It has the perplexities on both texts before and after.
    """
    if "steps" not in figures:
        return (
            "skipped: the domain text is the general text, so the pretrained model is used "
            "unchanged"
        )
    remark = unknown_words_remark(figures.get("domain_unk_rate"))
    if figures["domain_gain"] <= -0.0005:  # the line shows tenths of a per cent
        remark += (
            "; worse than before, which can happen if the model was trained on similar text: use "
            "the model that it started from, or lower finetune.training.lr"
        )
    return (
        f"domain perplexity {figures['domain_perplexity_before']:.1f} → "
        f"{figures['domain_perplexity_after']:.1f} ({-figures['domain_gain']:+.1%}), general "
        f"{figures['general_perplexity_before']:.1f} → {figures['general_perplexity_after']:.1f}"
        f"{remark}"
    )


def describe_score(figures: dict[str, float], started_from: str = "") -> str:
    """Return a few words for the end of `elmo run`: the domain perplexity before and after.

    `figures` are from `run`, and `started_from` names a model that was trained elsewhere. The text
    is empty if the project's own model was not fine-tuned, because `pretrain` reports its
    perplexity.
    """
    remark = unknown_words_remark(figures.get("domain_unk_rate"))
    perplexity_after = f"{figures['domain_perplexity_after']:.1f}"
    if "steps" not in figures:
        text = f"domain perplexity {perplexity_after} with {started_from}, unchanged{remark}"
        return text if started_from else ""
    origin = f", started from {started_from}" if started_from else ""
    perplexity_before = f"{figures['domain_perplexity_before']:.1f}"
    return f"domain perplexity {perplexity_before} → {perplexity_after}{origin}{remark}"


def _collect_figures(result: "TrainingResult") -> dict[str, float]:
    """Return the gain on the domain text, the loss on the general text, and the tokens read."""
    averages_before, averages_after = (
        {text: float(texts[text]["average"] or math.nan) for text in ("domain", "general")}
        for texts in (result.figures_before, result.figures_after)
    )
    figures = {
        f"{text}_perplexity_{time}": averages[text]
        for text in ("domain", "general")
        for time, averages in (("before", averages_before), ("after", averages_after))
    }
    return figures | {
        "domain_gain": 1 - averages_after["domain"] / averages_before["domain"],
        "general_loss": averages_after["general"] / averages_before["general"] - 1,
        "domain_tokens": result.figures_after["domain"]["tokens"] or 0,
        "domain_unk_rate": result.figures_after["domain"]["unk_rate"] or 0.0,
        "words_added": result.words_added,
        "steps": result.steps,
        "tokens_seen": result.tokens,
    }


def _count_types(shards: "Shards") -> Counter[str]:
    """Count each type in the training split."""
    counts: Counter[str] = Counter()
    for entry in shards.entries("train"):
        shard = shards.open(entry)
        counts.update(dict(zip(shard.types, shard.counts().tolist(), strict=True)))
    return counts


def _extend_vocabulary(
    vocabulary: "Vocabulary", counts: Counter[str], min_count: int
) -> "Vocabulary":
    """Return the vocabulary with the domain's tokens that occur `min_count` times or more added."""
    from elmo.data.vocabulary import RESERVED_WORDS, Vocabulary

    if min_count == 0:
        return vocabulary
    new_words = [
        (word, n)
        for word, n in counts.items()
        if n >= min_count and word not in vocabulary and word not in RESERVED_WORDS
    ]
    new_words.sort(key=lambda pair: (-pair[1], pair[0]))
    known_counts = vocabulary.counts
    new_counts = None if known_counts is None else [*known_counts, *(n for _, n in new_words)]
    return Vocabulary([*vocabulary.words, *(word for word, _ in new_words)], new_counts)


def init_new_words(
    softmax: "Softmax", vocabulary: "Vocabulary", counts: Counter[str], *, known_words: int
) -> None:
    """Initialize the softmax of the words that the domain adds (ids from `known_words` on).

    `vocabulary` includes them; `counts` has the counts of the domain's training tokens. New words
    start as copies of `<UNK>`, whose probability is divided among them and the tokens that are
    still unknown, in proportion to their counts.
    """
    import torch

    new_counts = torch.tensor([float(counts[word]) for word in vocabulary.words[known_words:]])
    if not len(new_counts):
        return
    unknown_count = sum(count for token, count in counts.items() if token not in vocabulary) + 1
    total = float(new_counts.sum()) + unknown_count
    with torch.no_grad():
        softmax.weight[known_words:] = softmax.weight[vocabulary.unk]
        softmax.bias[known_words:] = softmax.bias[vocabulary.unk] + (new_counts / total).log()
        softmax.bias[vocabulary.unk] += math.log(unknown_count / total)
